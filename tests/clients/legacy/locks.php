<?php
// Lock libraries for PHP by their public interfaces, each against what it does on Redis.
//
//     php locks.php PORT [--expect plain|enforce] [--tries N]
//
// As locks.py for Python, where the words and the rules are explained. The libraries are Debian's, and
// the rows run one after the other.

require 'Illuminate/Cache/autoload.php';
require 'Illuminate/Redis/autoload.php';
require 'Predis/autoload.php';
require __DIR__ . '/symfony.php';

use Illuminate\Cache\RedisStore;
use Illuminate\Contracts\Cache\LockTimeoutException;
use Illuminate\Contracts\Redis\LimiterTimeoutException;
use Illuminate\Redis\Limiters\ConcurrencyLimiter;
use Illuminate\Redis\RedisManager;

// Lives of locks, and the longest wait for one that runs out, in seconds.
const LONG = 30;
const SHORT = 2;
const PATIENCE = 20;

// A step that ended otherwise than on Redis. One that believes has a lock too many.
class Differs extends Exception
{
    public bool $believes;

    public function __construct(string $step, $wanted, $got)
    {
        parent::__construct("$step: " . json_encode($got) . ' instead of ' . json_encode($wanted));
        $this->believes = $got === true && !$wanted;
    }
}

function step(string $name, $got, $wanted): void
{
    if ($got !== $wanted) {
        throw new Differs($name, $wanted, $got);
    }
}

// Waits until $take is granted: not before $since and $life seconds, and not for ever.
function runs_out(float $since, float $life, callable $take): void
{
    while (!$take()) {
        step('the lock runs out', microtime(true) < $since + $life + PATIENCE, true);
        usleep(100_000);
    }
    step('the lock ran out before its time', microtime(true) < $since + $life - 0.01, false);
}

function laravel_redis(int $port): RedisManager
{
    $default = ['host' => '127.0.0.1', 'port' => $port, 'database' => 0];
    return new RedisManager(null, 'predis', ['default' => $default]);
}

function laravel(int $port): RedisStore
{
    return new RedisStore(laravel_redis($port), 'legacy:');
}

function laravel_lock(int $port, string $key): void
{
    [$first, $second, $third] = array_map('laravel', [$port, $port, $port]);
    $lock = $first->lock($key, LONG);
    step('take', $lock->get(), true);
    step("another's take", $second->lock($key, LONG)->get(), false);
    step("another's release", $second->lock($key, LONG)->release(), false);
    $waits = fn () => $second->lock($key, LONG)->block(1);
    try {
        $waits();
        throw new Differs('a wait for what is held', 'LockTimeoutException', true);
    } catch (LockTimeoutException $timeout) {
    }
    step('release', $lock->release(), true);
    step('release again', $lock->release(), false);
    $other = $second->lock($key, LONG);
    step('take after the release', $other->get(), true);
    step('release elsewhere, by the owner', $third->restoreLock($key, $other->owner())->release(), true);
    step('take with a function', $first->lock($key, LONG)->get(
        fn () => $second->lock($key, LONG)->get() ? 'granted twice' : 'done',
    ), 'done');
    step('take behind it', $second->lock($key, LONG)->block(PATIENCE), true);
    $third->lock($key, LONG)->forceRelease();

    $since = microtime(true);
    $lock = $first->lock($key, SHORT);
    step('a short take', $lock->get(), true);
    $other = $second->lock($key, LONG);
    runs_out($since, SHORT, fn () => $other->get());
    step('release of a lost lock', $lock->release(), false);
    step('take after a late release', $third->lock($key, LONG)->get(), false);
    step('the last release', $other->release(), true);
}

function laravel_lock_for_ever(int $port, string $key): void
{
    [$first, $second] = array_map('laravel', [$port, $port]);
    $lock = $first->lock($key);
    step('take', $lock->get(), true);
    step("another's take", $second->lock($key)->get(), false);
    step('release', $lock->release(), true);
    step('take after the release', $second->lock($key)->get(), true);
}

// What Laravel's scheduler and unique jobs use.
function laravel_add(int $port, string $key): void
{
    [$first, $second] = array_map('laravel', [$port, $port]);
    step('add', $first->add($key, true, LONG), true);
    step('add again', $second->add($key, true, LONG), false);
    step('get', $second->get($key), true);
    step('forget', $first->forget($key), true);
    step('forget again', $first->forget($key), false);
    $since = microtime(true);
    step('a short add', $second->add($key, 'text', SHORT), true);
    step('get of it', $first->get($key), 'text');
    runs_out($since, SHORT, fn () => $first->add($key, 1, LONG));
    step('the last forget', $second->forget($key), true);
}

// Redis::funnel: three may hold a place at once.
function laravel_funnel(int $port, string $key): void
{
    // Each asks over a connection of its own.
    $within = fn (callable $inner) => fn () => laravel_redis($port)->connection()->funnel("legacy:$key:")
        ->limit(3)->releaseAfter(LONG)->block(0)->then($inner, fn () => 'full');
    step('three', $within($within($within(fn () => 'inside')))(), 'inside');
    step('a fourth', $within($within($within($within(fn () => true))))(), 'full');
    step('three after that', $within($within($within(fn () => 'inside')))(), 'inside');
    $fails = fn () => throw new DomainException('failed inside');
    try {
        $within($within($fails))();
        throw new Differs('an exception inside', 'DomainException', null);
    } catch (DomainException $failed) {
    }
    step('three after an exception', $within($within($within(fn () => 'inside')))(), 'inside');

    $take = function () use ($port, $key) {
        try {
            $redis = laravel_redis($port)->connection();
            return (new ConcurrencyLimiter($redis, "legacy:$key:short", 2, SHORT))->block(0);
        } catch (LimiterTimeoutException $timeout) {
            return false;
        }
    };
    $since = microtime(true);
    step('the first that is short', $take(), true);
    step('the second', $take(), true);
    step('a third', $take(), false);
    runs_out($since, SHORT, $take);
}

// Cache::funnel of Laravel 12 by its calls: it tries one lock after the other, by one token.
function laravel_cache_funnel(int $port, string $key): void
{
    $take = function (string $token) use ($port, $key) {
        foreach (range(1, 3) as $place) {
            $lock = laravel($port)->lock("$key:$place", LONG, $token);
            if ($lock->acquire()) {
                return $lock;
            }
        }
        return null;
    };
    $locks = array_map($take, ['a', 'b', 'c']);
    step('a fourth', $take('d'), null);
    step('release', $locks[1]->release(), true);
    $fourth = $take('d');
    step('the fourth after that', $fourth?->owner(), 'd');
    step('a fifth', $take('e'), null);
    foreach ([$locks[0], $fourth, $locks[2]] as $lock) {
        step('the last releases', $lock->release(), true);
    }
}

// redlock-php by its commands: its release is known by its digest.
function redlock_php(int $port, string $key): void
{
    $release = 'bec85b1c518b7ba0348a49c79b24adbb1ca95d3b';
    $key = "legacy:$key";
    $client = fn () => new Predis\Client(['host' => '127.0.0.1', 'port' => $port]);
    [$first, $second] = [$client(), $client()];
    $take = fn ($client, $token) => (bool) $client->set($key, $token, 'PX', 1000 * LONG, 'NX');
    step('take', $take($first, 'a'), true);
    step("another's take", $take($second, 'b'), false);
    step("another's release", $second->evalsha($release, 1, $key, 'b'), 0);
    step('release', $first->evalsha($release, 1, $key, 'a'), 1);
    step('take after the release', $take($second, 'b'), true);
    step('the last release', $second->evalsha($release, 1, $key, 'b'), 1);
}

// What is run, and what is expected of it under enforce. Only under enforce is the release of
// redlock-php known by its digest alone.
$rows = [
    ['Laravel 8 Cache::lock', 'laravel_lock', 'works'],
    ['Laravel 8 Cache::lock without seconds', 'laravel_lock_for_ever', 'refused'],
    ['Laravel 8 Cache::add', 'laravel_add', 'works'],
    ['Laravel 8 Redis::funnel', 'laravel_funnel', 'works'],
    ['Laravel 12 Cache::funnel, by its calls', 'laravel_cache_funnel', 'works'],
    ['redlock-php, by its commands', 'redlock_php', 'works'],
];
foreach (['predis', 'php-redis'] as $client) {
    foreach ([
        ['a lock alone', 'symfony_alone', 'works'],
        ['readers', 'symfony_readers', 'works'],
        ['several processes', 'symfony_processes', 'works'],
        ['the only reader writes', 'symfony_promotion', 'refused'],
        ['others read beside a writer that reads', 'symfony_demotion', 'refused'],
    ] as [$what, $judge, $word]) {
        $rows[] = ["Symfony 5 on $client: $what", fn ($port, $key) => $judge($port, $key, $client), $word];
    }
}

$port = (int) $argv[1];
$is_enforced = ($argv[3] ?? 'plain') === 'enforce';
$tries = (int) ($argv[5] ?? 1);
$is_good = true;
foreach ($rows as $number => [$name, $judge, $word]) {
    $refusal = null;
    $said = 'ok';
    if ($judge === 'redlock_php' && !$is_enforced) {
        echo "$name: ok, not run\n";
        continue;
    }
    for ($left = $tries; $left > 0; $left--) {
        $refusal = null;
        try {
            $judge($port, "php:$number:$left:" . getmypid());
            break;
        } catch (Throwable $error) {
            $believes = $error instanceof Differs && $error->believes;
            $is_fault = $error instanceof Error || $error instanceof Predis\CommunicationException;
            $refusal = get_class($error) . ': ' . $error->getMessage();
            if ($believes || $is_fault || $left === 1) {
                break;
            }
            sleep(1);
        }
    }
    if ($refusal !== null) {
        if (!$is_enforced || $word === 'works' || $believes || $is_fault) {
            $said = "$refusal\n" . $error->getTraceAsString();
            $is_good = false;
        } else {
            $said = "ok, refused ($refusal)";
        }
    }
    if ($is_enforced && $word === 'refused' && $refusal === null) {
        $said = 'it is not refused';
        $is_good = false;
    }
    echo "$name: $said\n";
}
exit($is_good ? 0 : 1);
