<?php
// Symfony's lock store by its public interface, on Predis and on php-redis. locks.php has the rules of a row.
//
//     php symfony.php work PORT KEY CLIENT write|read FILE
//
// is one of the processes that exclude one another.

require_once 'Predis/autoload.php';
require_once 'Symfony/Component/Lock/autoload.php';

use Symfony\Component\Lock\Exception\LockConflictedException;
use Symfony\Component\Lock\Key;
use Symfony\Component\Lock\Lock;
use Symfony\Component\Lock\LockFactory;
use Symfony\Component\Lock\Store\RedisStore as SymfonyStore;

// How often each process takes the lock, and the longest time for all of them, in seconds.
const ROUNDS = 5;
const ALL_WORK = 90;

// Each store has a connection of its own.
function symfony_store(int $port, string $client, float $ttl = 30): SymfonyStore
{
    if ($client === 'predis') {
        return new SymfonyStore(new Predis\Client(['host' => '127.0.0.1', 'port' => $port]), $ttl);
    }
    $redis = new Redis();
    $redis->connect('127.0.0.1', $port);
    return new SymfonyStore($redis, $ttl);
}

function symfony_lock(int $port, string $client, string $key, float $ttl = 30, bool $auto = true): Lock
{
    return (new LockFactory(symfony_store($port, $client)))->createLock("legacy:$key", $ttl, $auto);
}

function symfony_alone(int $port, string $name, string $client): void
{
    $make = fn (float $ttl = LONG, bool $auto = true) => symfony_lock($port, $client, $name, $ttl, $auto);
    [$lock, $other] = [$make(), $make()];
    step('not held', $lock->isAcquired(), false);
    step('take', $lock->acquire(), true);
    step('held', $lock->isAcquired(), true);
    step('take again', $lock->acquire(), true);
    step("another's take", $other->acquire(), false);
    step("another's hold", $other->isAcquired(), false);
    step("another's part", $other->acquireRead(), false);
    step('refresh', $lock->refresh(), null);
    step('its time', $lock->getRemainingLifetime() > LONG - 10 && !$lock->isExpired(), true);
    symfony_conflict("another's refresh", fn () => $other->refresh());
    $other->release();
    step("held after another's release", $lock->isAcquired(), true);
    $lock->release();
    step('released', $lock->isAcquired(), false);
    symfony_conflict('refresh of what is released', fn () => $lock->refresh());
    step('take after the release', $other->acquire(), true);

    // A waiter gets it once it runs out.
    $other->refresh(SHORT);
    $since = microtime(true);
    step('take by waiting', $lock->acquire(true), true);
    step('it ran out before its time', microtime(true) < $since + SHORT - 0.01, false);
    step('the one that ran out', $other->isAcquired(), false);
    // Another process goes on with it, by its serialized key.
    $key = new Key("legacy:$name:moved");
    $first = (new LockFactory(symfony_store($port, $client)))->createLockFromKey($key, LONG, false);
    step('take by a key', $first->acquire(), true);
    $moved = unserialize(serialize($key));
    $second = (new LockFactory(symfony_store($port, $client)))->createLockFromKey($moved, LONG, false);
    step('held elsewhere', $second->isAcquired(), true);
    $second->refresh();
    $second->release();
    step('released elsewhere', $first->isAcquired(), false);
    // The end of the object releases the lock, unless that is turned off.
    unset($lock);
    step('take after the end of the object', ($last = $make(LONG, false))->acquire(), true);
    unset($last);
    step('kept after the end of the object', $make()->acquire(), false);
}

function symfony_readers(int $port, string $name, string $client): void
{
    $make = fn (float $ttl = LONG) => symfony_lock($port, $client, $name, $ttl);
    [$one, $two, $writer] = [$make(), $make(), $make()];
    step('read', $one->acquireRead(), true);
    step('read beside it', $two->acquireRead(true), true);
    step('both', [$one->isAcquired(), $two->isAcquired(), $writer->isAcquired()], [true, true, false]);
    step('write', $writer->acquire(), false);
    $one->refresh();
    step('read again', $two->acquireRead(), true);
    step('a reader writes beside another', $one->acquire(), false);
    step('it still reads', $one->isAcquired(), true);
    $one->release();
    step('one has gone', [$one->isAcquired(), $two->isAcquired()], [false, true]);
    step('write beside the other', $writer->acquire(), false);
    symfony_conflict('refresh of what is released', fn () => $one->refresh());
    $two->release();
    step('write after them', $writer->acquire(), true);
    step('read beside a writer', $one->acquireRead(), false);
    // A writer that goes on as a reader.
    step('read as the writer', $writer->acquireRead(), true);
    step('it is held', $writer->isAcquired(), true);
    step('write beside it', $one->acquire(), false);
    $writer->release();
    $since = microtime(true);
    step('a short part', $make(SHORT)->acquireRead(), true);
    step('a long part', ($short = $make(SHORT))->acquireRead(), true);
    step('write by waiting', $writer->acquire(true), true);
    step('the part ran out before its time', microtime(true) < $since + SHORT - 0.01, false);
    symfony_conflict('refresh of a part that ran out', fn () => $short->refresh());
    $writer->release();
    // Another process goes on with a part.
    $key = new Key("legacy:$name");
    (new LockFactory(symfony_store($port, $client)))->createLockFromKey($key, LONG, false)->acquireRead();
    $elsewhere = (new LockFactory(symfony_store($port, $client)))
        ->createLockFromKey(unserialize(serialize($key)), LONG, false);
    step('held elsewhere', $elsewhere->isAcquired(), true);
    $elsewhere->refresh();
    step('write beside it', $writer->acquire(), false);
    $elsewhere->release();
    step('the last write', $writer->acquire(), true);
}

// The only reader becomes the writer on Redis; and a writer that reads lets others read.
function symfony_promotion(int $port, string $name, string $client): void
{
    $lock = symfony_lock($port, $client, $name);
    step('read', $lock->acquireRead(), true);
    step('write as the only reader', $lock->acquire(), true);
}

function symfony_demotion(int $port, string $name, string $client): void
{
    [$lock, $other] = [symfony_lock($port, $client, $name), symfony_lock($port, $client, $name)];
    step('write', $lock->acquire(), true);
    step('go on as a reader', $lock->acquireRead(), true);
    step('read beside it', $other->acquireRead(), true);
}

function symfony_conflict(string $name, callable $fails): void
{
    try {
        $fails();
    } catch (LockConflictedException $conflict) {
        return;
    }
    throw new Differs($name, 'LockConflictedException', true);
}

// Processes that write a file under the lock, and some that read it: no update is lost, and none is seen half.
function symfony_processes(int $port, string $name, string $client): void
{
    $file = tempnam(sys_get_temp_dir(), 'lockgate');
    file_put_contents($file, '0');
    $kinds = ['write', 'read', 'write', 'read', 'write', 'read'];
    $all = [];
    foreach ($kinds as $kind) {
        $command = [PHP_BINARY, __FILE__, 'work', (string) $port, $name, $client, $kind, $file];
        $all[] = [proc_open($command, [1 => ['pipe', 'w'], 2 => ['redirect', 1]], $pipes), $pipes[1]];
    }
    $failed = [];
    foreach ($all as [$process, $out]) {
        $said = stream_get_contents($out);
        if (proc_close($process) !== 0 || $said !== '') {
            $failed[] = $said;
        }
    }
    $count = file_get_contents($file);
    unlink($file);
    foreach ($failed as $said) {
        if (str_contains($said, 'beside')) {
            throw new Error("two at once: $said");
        }
    }
    step('what the processes said', implode("\n", $failed), '');
    step('how often they wrote', $count, (string) (3 * ROUNDS));
}

function symfony_work(int $port, string $name, string $client, string $kind, string $file): void
{
    $lock = symfony_lock($port, $client, $name);
    for ($round = 0; $round < ROUNDS; $round++) {
        $kind === 'write' ? $lock->acquire(true) : $lock->acquireRead(true);
        $before = file_get_contents($file);
        if (!ctype_digit($before)) {
            exit("$kind beside a writer: $before\n");
        }
        if ($kind === 'write') {
            file_put_contents($file, "after $before");
        }
        usleep(random_int(5_000, 20_000));
        if ($kind === 'write') {
            file_put_contents($file, (string) ($before + 1));
        } elseif (file_get_contents($file) !== $before) {
            exit("$kind beside a writer: $before has changed\n");
        }
        $lock->release();
        usleep(random_int(1_000, 30_000));
    }
}

if (($argv[1] ?? '') === 'work' && realpath($argv[0]) === __FILE__) {
    set_time_limit(ALL_WORK);
    symfony_work((int) $argv[2], $argv[3], $argv[4], $argv[5], $argv[6]);
}
