// Locks of a Lockgate proxy for programs that use ioredis or node-redis: lock() runs work under a lock, once() runs it
// on one of many machines.
"use strict";

const { AsyncLocalStorage } = require("node:async_hooks");
const { acquire } = require("./acquire.cjs");
const { Server, isCluster, isPool } = require("./connection.cjs");
const { LockLost, LockgateError, NotAcquired, NotLockgate } = require("./errors.cjs");
const { quoted } = require("./hold.cjs");

/** The locks that the running task holds: a list from the innermost block outwards. */
const tasks = new AsyncLocalStorage();

/** Grants that were dropped. Their locks stay, as their work may go on. */
const dropped = new FinalizationRegistry((hold) => {
  if (hold.isReleased || hold.loss) return;
  const said = `a grant of the lock ${quoted(hold.names)} was dropped without release()`;
  process.emitWarning(`${said}: the lock is held until the process ends`, "LockgateWarning");
  hold.unref();
});

async function lock(client, key, options = {}, work = undefined) {
  if (typeof options === "function") return lock(client, key, {}, options);
  if (typeof (options ?? {}) !== "object") throw new TypeError("lock() needs its options as an object: { wait: 5000 }");
  const { wait, permits, shared, signal, ...others } = options ?? {};
  for (const name of Object.keys(others)) {
    throw new TypeError(`lock() knows no option ${name}: wait, permits, shared, signal`);
  }
  const keys = [key].flat();
  if (keys.length === 0 || !keys.every((name) => typeof name === "string")) {
    throw new TypeError("lock() needs the lock's name: a string, or several in an array");
  }
  if (keys.length > 1 && (permits !== undefined || shared)) {
    throw new TypeError("permits and shared are for one lock, not for several at once");
  }
  return hold(client, { keys, permits, shared, wait: milliseconds("wait", wait), signal }, work);
}

function once(client, key, { atLeast, signal } = {}) {
  if (typeof key !== "string") throw new TypeError("once() needs the lock's name, a string");
  if (atLeast === undefined) throw new TypeError("once() needs atLeast: for how long nobody else runs the work, in ms");
  const ttl = milliseconds("atLeast", atLeast);
  return (work) =>
    async (...words) => {
      let hasBegun = false;
      const begin = (grant) => {
        hasBegun = true;
        return work(grant, ...words);
      };
      try {
        return await hold(client, { keys: [key], ttl, wait: 0, signal }, begin);
      } catch (error) {
        if (!hasBegun && error instanceof NotAcquired && error.reason === "held") return undefined;
        throw error;
      }
    };
}

/** Takes a lock, or one that the task has already. Runs work under it, or returns the grant where there is none. */
async function hold(client, { wait, signal, ...request }, work) {
  if (signal != null && !(signal instanceof AbortSignal)) throw new TypeError("signal should be an AbortSignal");
  signal?.throwIfAborted();
  const server = await Server.of(client);
  const outer = tasks.getStore();
  const held = entered(outer, server, request) ?? (await acquire(server, request, wait, signal));
  const grant = new Grant(held, signal, request);
  if (!work) {
    dropped.register(grant, held, grant);
    return grant;
  }
  let result;
  try {
    result = await tasks.run({ held, outer }, () => work(grant));
  } catch (error) {
    const loss = await grant.release().catch((reason) => reason);
    // What stopped because of the signal was stopped by the loss.
    if (loss && (error === loss || error?.name === "AbortError")) throw loss;
    const canTell = error instanceof Error && error.cause === undefined && Object.isExtensible(error);
    if (loss && canTell) error.cause = loss;
    throw error;
  }
  await grant.release();
  return result;
}

/** The lock that the task has already, with one more user; undefined if it has none of those that are asked for. */
function entered(outer, server, { keys, permits, shared, ttl }) {
  // Two permits are two, and what is to run once is not to run within itself.
  if (permits !== undefined || ttl !== undefined) return undefined;
  for (let at = outer; at; at = at.outer) {
    const { held } = at;
    if (held.isReleased || held.origin !== server.origin) continue;
    const has = (key) => held.names.includes(key);
    if (!keys.some(has)) continue;
    if (!keys.every(has) || (held.shared && !shared)) {
      const had = `${held.shared ? "shares" : "holds"} ${quoted(held.names)}`;
      throw new LockgateError(`the lock ${quoted(keys)} would wait for its own task, which ${had}`);
    }
    held.tick();
    if (held.loss) throw held.loss;
    held.users++;
    return held;
  }
  return undefined;
}

class Grant {
  #held;
  #released;
  #forget;

  constructor(held, cancel, { keys, permits }) {
    this.#held = held;
    [this.signal, this.#forget] = signalOf(held, cancel);
    // An inner block may have asked for some of what its caller holds. Of a permit the name is in the answer.
    this.names = permits === undefined ? [...keys] : [...held.names];
    this.name = this.names[0];
    this.token = held.token;
    this.fences = this.names.map((name) => held.fences[held.names.indexOf(name)]);
    this.fence = this.fences[0];
    // As a block may take them out of the grant: ({ signal, check }) => …
    for (const method of ["remaining", "check", "execute", "attach", "release"]) this[method] = this[method].bind(this);
  }

  get lost() {
    this.#held.tick();
    return this.#held.loss !== undefined;
  }

  remaining() {
    return this.#released ? 0 : this.#held.remaining();
  }

  check() {
    this.#held.tick();
    if (this.#held.loss) throw this.#held.loss;
    if (this.#released) throw new LockgateError(`the lock ${quoted(this.names)} was released`);
  }

  async execute(...words) {
    this.check();
    return this.#held.execute(words.flat());
  }

  get redis() {
    this.check();
    const get = (client, name) => {
      this.check();
      const value = Reflect.get(client, name, client);
      return typeof value === "function" ? value.bind(client) : value;
    };
    return new Proxy(this.#held.client, { get });
  }

  attach(target) {
    this.check();
    if (isPool(target) || isCluster(target)) throw new TypeError("attach() needs one connection, not one of several");
    const attaching = this.names.map((name) => {
      const words = ["LOCK.ATTACH", name, this.token];
      if (typeof target.addCommand === "function") return target.addCommand(words);
      return typeof target.call === "function" ? target.call(...words) : target.sendCommand(words);
    });
    // A pipeline answers later, and refuses guarded writes by itself.
    if (typeof target.exec === "function" && typeof target.duplicate !== "function") return target;
    return Promise.all(attaching).then((answers) => {
      if (answers.includes(null)) throw new LockLost(`the lock ${quoted(this.names)} is not held any more`);
    });
  }

  release() {
    dropped.unregister(this);
    this.#released ??= this.#held.leave().finally(this.#forget);
    return this.#released;
  }
}

// Where the engine has it, `await using` releases.
if (Symbol.asyncDispose) {
  Grant.prototype[Symbol.asyncDispose] = function () {
    return this.release();
  };
}

/** A signal that aborts when the lock is lost or the caller cancels, and what ends that. */
function signalOf(held, cancel) {
  const controller = new AbortController();
  const { signal } = controller;
  const abort = () => controller.abort(held.loss ?? cancel.reason);
  held.watchers.add(abort);
  cancel?.addEventListener("abort", abort);
  if (held.loss || cancel?.aborted) abort();
  // A loop that was blocked has not let the timer of the validity fire, but may be asked.
  const { get } = Object.getOwnPropertyDescriptor(AbortSignal.prototype, "aborted");
  const aborted = () => {
    held.tick();
    return get.call(signal);
  };
  const throwIfAborted = () => {
    if (aborted()) throw signal.reason;
  };
  Object.defineProperties(signal, { aborted: { get: aborted }, throwIfAborted: { value: throwIfAborted } });
  const forget = () => {
    held.watchers.delete(abort);
    cancel?.removeEventListener("abort", abort);
  };
  return [signal, forget];
}

function milliseconds(name, value) {
  if (value === undefined || value === null || value === Infinity) return undefined;
  if (typeof value === "number" && value >= 0) return Math.ceil(value);
  throw new TypeError(`${name} is a number of milliseconds, not ${value}`);
}

module.exports = { lock, once, LockLost, LockgateError, NotAcquired, NotLockgate };
