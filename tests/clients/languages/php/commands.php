<?php
// Commands and LOCK through the proxy by phpredis or Predis, as ../README.md says; the library's name comes first.

[, $library, $what, $port, $name] = $argv;
if ($library === 'phpredis') {
    $redis = new Redis();
    $redis->connect('127.0.0.1', (int) $port);
} else {
    require 'Predis/autoload.php';
    $redis = new Predis\Client(['host' => '127.0.0.1', 'port' => (int) $port]);
}

function check(string $what, $got, $wanted): void
{
    // Predis answers +OK by an object that is a string, too.
    if ($got != $wanted) {
        fwrite(STDERR, "$what: " . substr(json_encode($got), 0, 200) . "\n");
        exit(1);
    }
}

function data(string $library, $redis, string $name): void
{
    $is_phpredis = $library === 'phpredis';
    $pipeline = $is_phpredis ? $redis->multi(Redis::PIPELINE) : $redis->pipeline();
    for ($n = 0; $n < 1000; $n++) {
        $pipeline->incr("$name:n");
    }
    $replies = $is_phpredis ? $pipeline->exec() : $pipeline->execute();
    check('a pipeline', $replies[999], 1000);

    $transaction = $is_phpredis ? $redis->multi() : $redis->transaction();
    $transaction->set("$name:a", 1);
    $transaction->incr("$name:a");
    $replies = $is_phpredis ? $transaction->exec() : $transaction->execute();
    check('MULTI', $replies[1], 2);

    check('BLPOP', $redis->blPop(["$name:list"], 0), ["$name:list", 'pushed']);

    $large = str_repeat('0123456789abcdef', 500_000);
    $redis->set("$name:large", $large);
    check('a large value', $redis->get("$name:large") === $large, true);

    $bytes = implode('', array_map('chr', range(0, 255)));
    $redis->set($name . $bytes, $bytes);
    check('a binary value', bin2hex($redis->get($name . $bytes)), bin2hex($bytes));

    $message = null;
    if ($is_phpredis) {
        // It leaves subscribe only when the connection has ended, by an exception.
        try {
            $redis->subscribe([$name], function ($redis, $channel, $text) use (&$message) {
                $message = $text;
                $redis->close();
            });
        } catch (RedisException $closed) {
        }
    } else {
        $loop = $redis->pubSubLoop(['subscribe' => $name]);
        foreach ($loop as $event) {
            if ($event->kind === 'message') {
                $message = $event->payload;
                $loop->unsubscribe($name);
            }
        }
    }
    check('a message', $message, 'said');
    check('GET', $redis->get("$name:a"), 2);
}

// A line that says how it ended; $send returns a reply, and whether that is an error.
function outcome(callable $send): string
{
    try {
        [$reply, $is_error] = $send();
    } catch (Exception $error) {
        return 'error: ' . strtok($error->getMessage(), "\n") . ' (' . get_class($error) . ')';
    }
    return $is_error ? "error: $is_error" : ($reply ? 'answered' : 'null');
}

$send = function (...$words) use ($library, $redis) {
    if ($library === 'phpredis') {
        $redis->clearLastError();
        return [$redis->rawCommand(...$words), $redis->getLastError()];
    }
    $reply = $redis->executeRaw($words, $is_error);
    return [$reply, $is_error ? $reply : false];
};

switch ($what) {
    case 'data':
        data($library, $redis, $name);
        break;
    case 'loss':
        check('LOCK', (bool) $send('LOCK', $name, 'token')[0], true);
        echo "held\n";
        fgets(STDIN);
        echo outcome(fn () => [$redis->get($name), false]), "\n";
        echo outcome(fn () => [$redis->get($name), false]), "\n";
        break;
    case 'ask':
        $start = microtime(true);
        $said = outcome(fn () => $send('LOCK', $name, 'asks', 'PX', '20000', 'WAIT', $argv[5]));
        printf("%.1f %s\n", microtime(true) - $start, $said);
        break;
    case 'idle':
        $redis->ping();
        echo "ready\n";
        fgets(STDIN);
        echo outcome(fn () => [$redis->ping(), false]), "\n";
        echo outcome(fn () => [$redis->ping(), false]), "\n";
        break;
}
