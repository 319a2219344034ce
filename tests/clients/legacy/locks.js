// Lock libraries for Node by their public interfaces, each against what it does on Redis.
//
//     node locks.js PORT [--expect plain|enforce] [--tries N] [--only TEXT] [--rows]
//
// The same as locks.py for Python, where the options, the words and the rules are explained.
'use strict';

const fs = require('fs');
const path = require('path');
const { Redis } = require('ioredis');

// Lives of locks, in milliseconds, and the longest wait for one that runs out.
const LONG = 30_000;
const SHORT = 3_000;
const PATIENCE = 20_000;
// The longest time for all rows, in milliseconds.
const LIMIT = 110_000;

const sleep = (time) => new Promise((done) => setTimeout(done, Math.max(0, time)));

// A step that ended otherwise than on Redis. One that believes has a lock too many.
class Differs extends Error {
  constructor(step, wanted, got) {
    super(`${step}: ${JSON.stringify(got)} instead of ${JSON.stringify(wanted)}`);
    this.believes = [true, 1, 'OK'].includes(got) && !wanted;
  }
}

// A library that cannot run here.
class Absent extends Error {}

// Errors by which a library tells the fate of a lock. Others are the server's.
const OWN = new Set([
  'LockError', 'ExecutionError', 'LockAcquisitionError', 'LockReleaseError', 'LockExtendError',
  'E_LOCK_NOT_OWNED', 'MurLockException',
]);

// An error's name, as its library means it.
const nameOf = (error) => (OWN.has(error.code) ? error.code : OWN.has(error.name) ? error.name
  : error.constructor.name);

// What a library tells: its answer, or the name of its own error.
async function told(what) {
  try {
    return await what();
  } catch (error) {
    if (OWN.has(nameOf(error))) return nameOf(error);
    throw error;
  }
}

async function step(name, what, wanted) {
  const got = await told(what);
  if (got !== wanted) throw new Differs(name, wanted, got);
}

// What a library says of a refusal, with what the server said if it tells.
async function reason(error) {
  const last = await error.attempts?.at?.(-1);
  const votes = [...last?.votesAgainst?.values() ?? []].map((vote) => vote.message);
  return [error.message, ...votes].join(': ');
}

// True if it was granted, false if the library told so by one of its own errors.
async function granted(who, what) {
  try {
    await what();
    return true;
  } catch (error) {
    if (!OWN.has(nameOf(error))) throw error;
    who.refusal = await reason(error);
    return false;
  }
}

// Waits until `take` is granted: not before `end`, and not for ever.
async function runsOut(end, take) {
  for (;;) {
    if (await told(take) === true) break;
    if (performance.now() > end + PATIENCE) {
      throw new Differs('the lock runs out', true, false);
    }
    await sleep(100);
  }
  if (performance.now() < end - 10) throw new Differs('the lock ran out before its time', false, true);
}

// One client of a library: the part that is alike in most.
//
// A subclass has take(ms), true if the lock was granted, and release(); extend(ms) makes the lock
// last so long from now on. What is not there is undefined.
class Library {
  released = undefined; // release() of a lock that is held
  lost = undefined; // release() of one that ran out and is another's
  extended = true;
  extendLost = false;

  constructor(port, key) {
    Object.assign(this, { port, key });
  }

  async open() {
    this.client = new Redis({ port: this.port, connectionName: this.constructor.name });
  }

  async close() {
    this.client.disconnect();
  }

  // The lock is kept only if it was granted: a late release is of that one.
  take(time) {
    return granted(this, async () => { this.lock = await this.acquire(time); });
  }

  static async row(port, key) {
    const clients = [0, 1, 2].map(() => new this(port, key));
    const opened = [];
    try {
      for (const client of clients) {
        await client.open();
        opened.push(client);
      }
      await this.judge(...clients);
    } catch (error) {
      const { refusal } = clients[0];
      if (refusal && error instanceof Differs) error.message += ` (${refusal})`;
      throw error;
    } finally {
      for (const client of opened) await client.close();
    }
  }

  static async judge(first, second, third) {
    const looks = async (who, is) => {
      if (who.locked) await step('locked', () => who.locked(), is);
    };
    await looks(second, false);
    await step('take', () => first.take(LONG), true);
    await looks(second, true);
    await step("another's take", () => second.take(LONG), false);
    await step('release', () => first.release(), first.released);
    await looks(second, false);
    await step('take after the release', () => second.take(LONG), true);
    await step('take by who has released', () => first.take(LONG), false);
    await step("the other's release", () => second.release(), second.released);

    let since = performance.now();
    await step('a short take', () => first.take(SHORT), true);
    if (first.extend) {
      await sleep(SHORT / 2);
      const began = since;
      since = performance.now();
      await step('extend', () => first.extend(SHORT), first.extended);
      await sleep(began + SHORT + 200 - performance.now());
      // A busy machine may have taken all of the time.
      if (performance.now() < since + SHORT - 100) {
        await step('take past the first TTL', () => second.take(LONG), false);
      }
    }
    await runsOut(since + SHORT, () => second.take(LONG));
    await looks(first, true);
    if (first.extend) {
      await step('extend of a lost lock', () => first.extend(SHORT), first.extendLost);
    }
    await step('release of a lost lock', () => first.release(), first.lost);
    await step('take after a late release', () => third.take(LONG), false);
    await step('the last release', () => second.release(), second.released);
    await looks(first, false);
  }
}

class Redlock4 extends Library {
  static package = 'redlock-4';
  lost = 'LockError';
  extendLost = 'LockError';

  async open() {
    await super.open();
    const Redlock = require('redlock-4');
    this.locks = new Redlock([this.client], { retryCount: 0 });
  }

  acquire(time) { return this.locks.acquire(this.names(), time); }

  names() { return this.key; }

  release() { return this.lock.unlock().then(() => undefined); }

  async extend(time) {
    this.lock = await this.lock.extend(time);
    return true;
  }
}

class Redlock5 extends Library {
  static package = 'redlock-5';
  lost = 'ExecutionError';
  extendLost = 'ExecutionError';

  async open() {
    await super.open();
    const { default: Redlock } = require('redlock-5');
    this.locks = new Redlock([this.client], { retryCount: 0 });
  }

  acquire(time) { return this.locks.acquire(this.names(), time); }

  names() { return [this.key]; }

  release() { return this.lock.release().then(() => undefined); }

  async extend(time) {
    this.lock = await this.lock.extend(time);
    return true;
  }
}

class Sesamecare extends Redlock5 {
  static package = '@sesamecare-oss/redlock';

  async open() {
    await Library.prototype.open.call(this);
    const { Redlock } = require('@sesamecare-oss/redlock');
    this.locks = new Redlock([this.client], { retryCount: 0 });
  }
}

// Two keys at once: whoever has one of them keeps the other from both.
const twoKeys = (Base) => class extends Base {
  names() { return this.alone ? [`${this.key}:b`] : [`${this.key}:a`, `${this.key}:b`]; }

  static async judge(first, second, third) {
    await super.judge(first, second, third);
    third.alone = true;
    await step('take of one of the two', () => third.take(LONG), true);
    await step('take of both', () => first.take(LONG), false);
    await step('release of the one', () => third.release(), third.released);
    await step('take of both again', () => first.take(LONG), true);
    await step('take of the one', () => third.take(LONG), false);
    await step('release of both', () => first.release(), first.released);
    await step('take of the one again', () => third.take(LONG), true);
    await step('the last release of it', () => third.release(), third.released);
  }
};

class SemaphoreMutex extends Library {
  static package = 'redis-semaphore';

  async take(time) {
    const mutex = this.mutex(this.options(time));
    const is = await mutex.tryAcquire();
    if (is) this.lock = mutex;
    return is;
  }

  options(time) {
    return {
      lockTimeout: time, acquireTimeout: PATIENCE, acquireAttemptsLimit: 1, refreshInterval: 0,
      onLockLost: () => {},
    };
  }

  mutex(options) {
    const { Mutex } = require('redis-semaphore');
    return new Mutex(this.client, this.key, options);
  }

  release() { return this.lock.release(); }

  // A mutex that goes on with another's identifier begins with a refresh.
  extend(time) {
    const { identifier } = this.lock;
    return this.mutex({ ...this.options(time), identifier, acquiredExternally: true }).tryAcquire();
  }
}

class SemaphoreRedlockMutex extends SemaphoreMutex {
  mutex(options) {
    const { RedlockMutex } = require('redis-semaphore');
    return new RedlockMutex([this.client], this.key, options);
  }
}

// A mutex refreshes itself, and tells when it is lost.
class SemaphoreRefresh extends SemaphoreMutex {
  static async judge(first, second) {
    let lost = 0;
    const options = {
      ...first.options(SHORT), refreshInterval: SHORT / 4, onLockLost: () => { lost += 1; },
    };
    const [mutex, again] = [first.mutex(options), first.mutex(options)];
    try {
      await step('take', () => mutex.tryAcquire(), true);
      await sleep(SHORT + 300);
      await step("another's take past the TTL", () => second.take(LONG), false);
      await step('kept', () => lost === 0, true);
      mutex.stopRefresh();
      // The last refresh was within an interval.
      await runsOut(performance.now() + SHORT / 2, () => second.take(LONG));
      await step('release of a lost lock', () => mutex.release(), undefined);
      await step('take of what is held', () => first.take(LONG), false);
      await step('release', () => second.release(), undefined);
      await step('take again', () => again.tryAcquire(), true);
      await first.client.del(`mutex:${first.key}`);
      const end = performance.now() + PATIENCE;
      while (lost === 0 && performance.now() < end) await sleep(50);
      await step('lost after DEL', () => lost === 1, true);
    } finally {
      mutex.stopRefresh();
      again.stopRefresh();
    }
  }
}

class Universal extends Library {
  static package = 'redlock-universal';
  released = true;
  lost = false;

  async open() {
    await super.open();
    const { IoredisAdapter, createLock } = require('redlock-universal');
    this.make = (time) => createLock({
      adapter: new IoredisAdapter(this.client), key: this.key, ttl: time, retryAttempts: 0,
    });
  }

  async acquire(time) {
    this.maker = this.make(time);
    return this.maker.acquire();
  }

  release() { return this.maker.release(this.lock); }

  extend(time) { return this.maker.extend(this.lock, time); }

  locked() { return this.make(LONG).isLocked(this.key); }
}

class UniversalNodeRedis extends Universal {
  async open() {
    const { createClient } = require('redis');
    const { NodeRedisAdapter, createLock } = require('redlock-universal');
    this.client = createClient({ url: `redis://127.0.0.1:${this.port}`, RESP: 3 });
    await this.client.connect();
    this.make = (time) => createLock({
      adapter: new NodeRedisAdapter(this.client), key: this.key, ttl: time, retryAttempts: 0,
    });
  }

  async close() { this.client.destroy(); }
}

// using() extends by a script of its own.
class UniversalUsing extends Universal {
  static async judge(first, second) {
    // It extends when a fifth of the TTL is left, which a busy machine must not use up.
    const time = 4 * SHORT;
    await first.make(time).using(async (signal) => {
      await sleep(time + 500);
      await step('kept', () => !signal.aborted, true);
      await step("another's take past the TTL", () => second.take(LONG), false);
    });
    await step('take behind it', () => second.take(LONG), true);
    await step('release', () => second.release(), true);
  }
}

class UniversalBatch extends Universal {
  static async judge(first, second) {
    const { IoredisAdapter, LockManager } = require('redlock-universal');
    const manager = new LockManager({
      nodes: [new IoredisAdapter(first.client)], defaultTTL: LONG, defaultRetryAttempts: 0,
    });
    const keys = [first.key, `${first.key}:b`];
    let handles = await manager.acquireBatch(keys, { ttl: LONG });
    await step("another's take of one of them", () => second.take(LONG), false);
    await manager.releaseBatch(handles);
    await step('take of one of them', () => second.take(LONG), true);
    const both = () => granted(first, async () => {
      handles = await manager.acquireBatch(keys, { ttl: LONG });
    });
    await step('take of both', both, false);
    await step('release of the one', () => second.release(), true);
    await step('take of both again', both, true);
    await manager.releaseBatch(handles);
  }
}

class IoredisLock extends Library {
  static package = 'ioredis-lock';
  released = null;
  lost = 'LockReleaseError';
  extended = undefined;
  extendLost = 'LockExtendError';

  async acquire(time) {
    const lock = require('ioredis-lock').createLock(this.client, { timeout: time, retries: 0 });
    await lock.acquire(this.key);
    return lock;
  }

  release() { return this.lock.release(); }

  extend(time) { return this.lock.extend(time); }

  static async judge(first, second, third) {
    await super.judge(first, second, third);
    // To the library, a lock that extend() found lost was given back.
    await step('a short take', () => first.take(SHORT), true);
    await runsOut(performance.now() + SHORT - 100, () => second.take(LONG));
    await step('release of a lost lock without extend', () => first.release(), first.lost);
    await step('take after it', () => third.take(LONG), false);
    await step('release', () => second.release(), null);
  }
}

class Verrou extends Library {
  static package = '@verrou/core';
  lost = 'E_LOCK_NOT_OWNED';
  extended = undefined;
  extendLost = 'E_LOCK_NOT_OWNED';

  async open() {
    await super.open();
    const { Verrou: Locks } = await import('@verrou/core');
    const { redisStore } = await import('@verrou/core/drivers/redis');
    this.locks = new Locks({
      default: 'redis', stores: { redis: { driver: redisStore({ connection: this.client }) } },
    });
  }

  async take(time) {
    const lock = this.locks.createLock(this.key, time);
    const is = await lock.acquireImmediately();
    if (is) this.lock = lock;
    return is;
  }

  release() { return this.lock.release(); }

  extend(time) { return this.lock.extend(time); }

  locked() { return this.locks.createLock(this.key).isLocked(); }

  static async judge(first, second, third) {
    await super.judge(first, second, third);
    await step('take', () => first.take(LONG), true);
    await step('forceRelease', () => second.locks.createLock(first.key).forceRelease(), undefined);
    await step('release after it', () => first.release(), 'E_LOCK_NOT_OWNED');
  }
}

class VerrouForEver extends Verrou {
  static async judge(first, second) {
    await step('take', () => first.take(null), true);
    await step("another's take", () => second.take(null), false);
    await step('release', () => first.release(), undefined);
    await step('take after the release', () => second.take(null), true);
    await step('the last release', () => second.release(), undefined);
  }
}

class Warlock extends Library {
  static package = 'node-redis-warlock';
  released = 1;
  lost = 0;

  async open() {
    await super.open();
    this.locks = require('node-redis-warlock')(this.client);
  }

  take(time) {
    return new Promise((done, failed) => {
      this.locks.lock(this.key, time, (error, unlock, id) => {
        if (error) return failed(error);
        if (unlock) this.lock = id;
        return done(Boolean(unlock));
      });
    });
  }

  release() {
    return new Promise((done, failed) => {
      this.locks.unlock(this.key, this.lock, (error, count) => (error ? failed(error) : done(count)));
    });
  }
}

class WarlockTouch extends Warlock {
  extended = 'OK';
  extendLost = 0;

  extend(time) { return this.locks.touch(this.key, this.lock, time); }
}

// A lock lives as long as the function that is run under it.
class Murlock extends Library {
  static package = 'murlock';
  lost = 'MurLockException';

  async open() {
    const { MurLockService } = require('murlock');
    const { AsyncStorageService } = require('murlock/dist/als/als.service');
    const { AsyncStorageManager } = require('murlock/dist/als/als-manager');
    const options = {
      redisOptions: { url: `redis://127.0.0.1:${this.port}` }, maxAttempts: 1, wait: 1,
      logLevel: 'error', ignoreUnlockFail: false,
    };
    require('@nestjs/common').Logger.overrideLogger(false);
    this.storage = new AsyncStorageService(new AsyncStorageManager());
    this.locks = new MurLockService(options, this.storage);
    await this.locks.onModuleInit();
  }

  close() { return this.locks.onApplicationShutdown(); }

  take(time) {
    return granted(this, () => new Promise((done, failed) => {
      this.storage.runWithNewContext(() => {
        const run = this.locks.runWithLock(this.key, time, () => new Promise((end) => {
          this.lock = () => { end(); return run; };
          done();
        }));
        run.catch(failed);
      });
    }));
  }

  release() { return this.lock(); }
}

// What is run, and what is expected of it under enforce.
const ROWS = [
  ['redlock 4', Redlock4, 'works'],
  ['redlock 4 with two keys', twoKeys(Redlock4), 'works'],
  ['redlock 5', Redlock5, 'works'],
  ['redlock 5 with two keys', twoKeys(Redlock5), 'works'],
  ['@sesamecare-oss/redlock', Sesamecare, 'works'],
  ['@sesamecare-oss/redlock with two keys', twoKeys(Sesamecare), 'works'],
  ['redis-semaphore Mutex', SemaphoreMutex, 'works'],
  ['redis-semaphore Mutex that refreshes', SemaphoreRefresh, 'works'],
  ['redis-semaphore RedlockMutex', SemaphoreRedlockMutex, 'works'],
  ['redlock-universal', Universal, 'works'],
  ['redlock-universal on node-redis, RESP3', UniversalNodeRedis, 'works'],
  ['redlock-universal using()', UniversalUsing, 'refused'],
  ['redlock-universal batch', UniversalBatch, 'refused'],
  ['ioredis-lock', IoredisLock, 'works'],
  ['@verrou/core', Verrou, 'works'],
  ['@verrou/core without a TTL', VerrouForEver, 'refused'],
  ['node-redis-warlock', Warlock, 'works'],
  ['node-redis-warlock touch()', WarlockTouch, 'works'],
  ['murlock', Murlock, 'works'],
];

const version = (row) => JSON.parse(
  fs.readFileSync(path.join(__dirname, 'node_modules', row.package, 'package.json')),
).version.replace(/^v/, '');

// The line of a row, and whether it is as expected.
async function judged([name, row, word], number, port, expect, tries) {
  let refusal;
  try {
    await row.row(port, `legacy:${number}:${tries}:${process.pid}`);
  } catch (error) {
    if (error instanceof Absent) return [`not run: ${error.message}`, true];
    const text = error instanceof Differs ? error.message : `${nameOf(error)}: ${error.message}`;
    // One of the language's own is a fault of this program, or of the library. A connection that
    // ends is no refusal.
    const faults = [TypeError, ReferenceError, SyntaxError, RangeError];
    const isFault = faults.some((kind) => error instanceof kind)
      || /ECONN|Connection is closed|Socket closed|max retries/i.test(text);
    if (tries > 1 && !error.believes && !isFault) {
      await sleep(1000);
      return judged([name, row, word], number, port, expect, tries - 1);
    }
    if (expect === 'plain' || word === 'works' || error.believes || isFault) {
      return [isFault ? error.stack : text, false];
    }
    refusal = text;
  }
  if (expect === 'enforce' && word === 'refused' && !refusal) return ['it is not refused', false];
  return [refusal ? `ok, refused (${refusal})` : 'ok', true];
}

async function main() {
  const words = process.argv.slice(2);
  const option = (name, otherwise) => {
    const at = words.indexOf(name);
    return at < 0 ? otherwise : words.splice(at, 2)[1];
  };
  const expect = option('--expect', 'plain');
  const tries = Number(option('--tries', 1));
  const only = option('--only', '');
  const rows = ROWS.map((row, number) => [row, number]).filter(([[name]]) => name.includes(only));
  if (words.includes('--rows')) {
    for (const [[name, row, word]] of rows) console.log(`${name} ${version(row)}: ${word}`);
    return;
  }
  if (!['plain', 'enforce'].includes(expect)) throw new Error(`--expect ${expect}`);
  const port = Number(words[0]);
  // What a library does behind its caller's back.
  process.on('unhandledRejection', (error) => {
    // redis-semaphore handles no refusal of its refresh, and nodes that die may bring one about.
    if (tries > 1 && /NOQUORUM/.test(error.message)) return;
    console.log(`unhandled: ${error.stack}`);
    process.exitCode = 1;
  });
  const late = [`not within ${LIMIT} ms`, false];
  const limit = sleep(LIMIT).then(() => late);
  const judge = ([row, number]) => Promise.race([judged(row, number, port, expect, tries), limit]);
  // Loading takes long, and all rows would wait meanwhile.
  for (const [[, { package: name }]] of rows) await import(name);
  const lines = await Promise.all(rows.map(judge));
  lines.forEach(([line, isGood], at) => {
    const [[name, row]] = rows[at];
    console.log(`${name} ${version(row)}: ${line}`);
    if (!isGood) process.exitCode = 1;
  });
}

process.removeAllListeners('warning');
process.on('warning', () => {});
// Libraries hold timers and pools; all that is to be told is told by then.
main().then(() => process.exit(), (error) => { console.error(error); process.exit(1); });
