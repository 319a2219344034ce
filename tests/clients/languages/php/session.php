<?php
// A PHP session that phpredis keeps and locks, as php.ini sets it up.
//
//     php -d session.save_path=tcp://127.0.0.1:PORT … session.php NAME TIMES
//
// It adds one to n of the session NAME, TIMES times, and prints n. A notice or warning is an error: phpredis says by
// one alone that it goes on without the lock.

set_error_handler(function ($number, $text) {
    fwrite(STDERR, "$text\n");
    exit(1);
});
for ($times = (int) $argv[2]; $times > 0; $times--) {
    session_id($argv[1]);
    session_start();
    $_SESSION['n'] = ($_SESSION['n'] ?? 0) + 1;
    usleep(5_000);
    session_write_close();
}
echo $_SESSION['n'], "\n";
