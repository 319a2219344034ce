// How a lock is taken: LOCK by a new token each time, again and again, until it is granted or the time is over.
"use strict";

const { randomUUID } = require("node:crypto");
const { setTimeout: sleep } = require("node:timers/promises");
const { ANSWER, Connection } = require("./connection.cjs");
const { LockgateError, NotAcquired, NotLockgate, answered, passes, reasonOf } = require("./errors.cjs");
const { Hold, now, quoted, renew } = require("./hold.cjs");

/** A caller who set no limit is told after so many milliseconds why nothing happens, */
const SILENCE = 5_000;
/** and all callers together once in so many. */
const REPEATED = 60_000;
let lastWarning = -Infinity;
/** An answer that came sooner was no wait, in milliseconds. */
const QUICK = 50;
/** The longest WAIT that the proxy takes, by its address, once it has said so. */
const longest = new Map();
/** What is asked for until then: as long as a timer can be. */
const FOR_EVER = 2_000_000_000;

/** `request` has `keys`, and of `permits`, `shared` and `ttl` (of a lease) those that are set. */
async function acquire(server, request, wait = Infinity, signal) {
  const began = now();
  const deadline = began + wait;
  let connection;
  let trouble; // the last error, if the last attempt failed
  let asked;
  const stop = () => connection?.close();
  signal?.addEventListener("abort", stop);
  try {
    for (let failures = 0; ; ) {
      try {
        signal?.throwIfAborted();
        if (!connection) {
          connection = new Connection(server);
          await connection.connect();
        }
        asked = now();
        const limit = Math.min(deadline - asked, longest.get(server.where) ?? FOR_EVER);
        const hold = await attempt(server, connection, request, wait === 0 ? 0 : Math.max(1, Math.floor(limit)));
        if (hold && signal?.aborted) await hold.leave();
        signal?.throwIfAborted();
        if (hold) {
          connection = undefined;
          return hold;
        }
        trouble = undefined;
      } catch (error) {
        signal?.throwIfAborted();
        const most = /the longest is (\d+) ms \(locks\.max_wait\)/.exec(error.message);
        if (most) {
          longest.set(server.where, Number(most[1]));
          continue;
        }
        // Whatever it was granted ends with it.
        connection?.close();
        connection = undefined;
        if (!passes(error)) throw error;
        if (answered(error) === "MOVED") server = server.moved(error.message);
        trouble = error;
      }
      if (now() >= deadline) throw notAcquired(server, request, wait, trouble);
      // It waited in line. Some locks are refused at once all the same, such as bridged permits.
      if (!trouble && now() - asked > QUICK) continue;
      if (trouble && wait === Infinity && now() - began > SILENCE && now() - lastWarning > REPEATED) {
        lastWarning = now();
        const said = notAcquired(server, request, now() - began, trouble).message;
        process.emitWarning(`${said}; still trying`, "LockgateWarning");
      }
      const pause = 50 * 2 ** Math.min(failures++, 5) * (0.5 + Math.random() / 2);
      await sleep(Math.min(pause, deadline - now()), undefined, { signal }).catch(() => {});
    }
  } finally {
    signal?.removeEventListener("abort", stop);
    connection?.close();
  }
}

/** Sends one LOCK. Returns undefined if another client holds the lock. */
async function attempt(server, connection, { keys, permits, shared, ttl }, wait) {
  const token = randomUUID();
  const words = keys.length === 1 ? ["LOCK", keys[0], token] : ["MLOCK", keys.length, ...keys, token];
  if (permits !== undefined) words.push("PERMITS", permits);
  if (shared) words.push("SHARED");
  if (ttl !== undefined) words.push("PX", ttl);
  if (wait > 0) words.push("WAIT", wait);
  let since = now();
  let reply;
  try {
    reply = await connection.ask(words, wait + ANSWER);
  } catch (error) {
    throw await explained(error, server, connection, words[0]);
  }
  if (reply === null) return undefined;
  const [, second, third, permit] = reply;
  const fences = keys.length === 1 ? [Number(second)] : third.map(Number);
  let validity = Number(keys.length === 1 ? third : second);
  const names = permit === undefined ? keys : [permit];
  if (now() - since > validity / 3) {
    // It waited, so that a validity which counts from the LOCK says little.
    since = now();
    validity = await renew((renewal) => connection.ask(renewal, ANSWER), names, token, ttl);
    if (validity === 0) throw new Error("NOTHELD it was lost again before its validity was known");
  }
  return new Hold(server, connection, { names, token, fences, validity, since, ttl, shared: Boolean(shared) });
}

/** Says what an error means where the server is none that this package is for. */
async function explained(error, server, connection, command) {
  const isUnknown = (message) => /^ERR unknown command/i.test(message);
  const option = /^ERR syntax error, unknown option '(.*)'/.exec(error.message)?.[1];
  if (!isUnknown(error.message) && option === undefined) return error;
  let version = "an unknown version";
  try {
    version = await connection.ask(["LOCKGATE", "VERSION"], ANSWER);
  } catch ({ message }) {
    if (isUnknown(message)) {
      const said = `${server.where} is no Lockgate proxy, it does not know LOCK. Give lock() a client of the proxy`;
      return new NotLockgate(said, { cause: error });
    }
  }
  const said = `the Lockgate proxy at ${server.where} (${version}) is too old: it does not know ${option ?? command}`;
  return new LockgateError(said, { cause: error });
}

function notAcquired(server, { keys }, wait, trouble) {
  const reason = reasonOf(trouble);
  const said = trouble && (trouble.message || trouble.code || trouble);
  const why = reason === "held" ? "another client holds it" : `${server.where}: ${said}`;
  const message = `the lock ${quoted(keys)} was not acquired within ${Math.round(wait)} ms: ${why}`;
  return new NotAcquired(message, reason, trouble);
}

module.exports = { acquire };
