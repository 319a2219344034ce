<?php
// A lock as programs in PHP have it on one Redis, by phpredis or Predis: SET NX PX, and a script that compares and
// deletes.
//
//     adopted.php phpredis|predis count PORT NAME TIMES    adds one to NAME:count under lock:NAME, TIMES times
//     adopted.php phpredis|predis hold PORT NAME           takes lock:NAME, says "held", and keeps it

[, $library, $what, $port, $name] = $argv;
$key = "lock:$name";
$script = <<<'LUA'
    if redis.call("get", KEYS[1]) == ARGV[1] then
        return redis.call("del", KEYS[1])
    else
        return 0
    end
    LUA;

if ($library === 'phpredis') {
    $redis = new Redis();
    $redis->connect('127.0.0.1', (int) $port);
    $set = fn ($token) => $redis->set($key, $token, ['nx', 'px' => 5000]);
    $release = fn ($token) => $redis->eval($script, [$key, $token], 1);
} else {
    require 'Predis/autoload.php';
    $redis = new Predis\Client(['host' => '127.0.0.1', 'port' => (int) $port]);
    $set = fn ($token) => $redis->set($key, $token, 'PX', 5000, 'NX');
    $release = fn ($token) => $redis->eval($script, 1, $key, $token);
}

$take = function () use ($set) {
    $token = bin2hex(random_bytes(16));
    while (!$set($token)) {
        usleep(50_000);
    }
    return $token;
};

if ($what === 'hold') {
    $take();
    echo "held\n";
    while (true) {
        sleep(1);
    }
}
for ($times = (int) $argv[5]; $times > 0; $times--) {
    $token = $take();
    $count = (int) $redis->get("$name:count");
    usleep(5_000);
    $redis->set("$name:count", $count + 1);
    if (($released = $release($token)) !== 1) {
        throw new RuntimeException('release: ' . json_encode($released));
    }
}
