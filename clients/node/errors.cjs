// The errors that this package throws itself, and what the errors of a proxy mean to it.
"use strict";

class LockgateError extends Error {}

/** The lock was not to be had within the time that the caller gave. */
class NotAcquired extends LockgateError {
  constructor(message, reason, cause) {
    super(message, cause && { cause });
    /** "held", "no quorum", "unreachable", or "refused": the proxy asks to try again. */
    this.reason = reason;
  }
}

/** The lock is not held any more, or not known to be. */
class LockLost extends LockgateError {}

/** What answers there is no Lockgate proxy. */
class NotLockgate extends LockgateError {}

// A bundler may shorten the names of classes.
for (const [name, { prototype }] of Object.entries({ LockgateError, NotAcquired, LockLost, NotLockgate })) {
  Object.defineProperty(prototype, "name", { value: name, writable: true, configurable: true });
}

/** Errors of a proxy that end by themselves. */
const PASSING = new Set([
  "NOQUORUM", "TRYAGAIN", "NOREPLICAS", "FENCED", "NOTHELD", "QUEUEFULL", "LOADING", "BUSY", "MASTERDOWN",
  "CLUSTERDOWN", "READONLY", "MOVED",
]);

/** The first word of an error that a server answered; undefined if no server answered. */
function answered(error) {
  const word = /^([A-Z][A-Z0-9_]*)(?: |$)/.exec(error?.message ?? "");
  return error?.code === undefined && word ? word[1] : undefined;
}

/** Whether a later attempt may succeed. */
function passes(error) {
  if (error instanceof LockgateError || error instanceof TypeError) return false;
  const word = answered(error);
  return word === undefined || PASSING.has(word) || error.message === "ERR max number of clients reached";
}

/** Why a lock was not acquired, by the last error, or none if a client has it. */
function reasonOf(error) {
  const word = answered(error);
  if (!error || word === "QUEUEFULL") return "held";
  if (word === "NOQUORUM") return "no quorum";
  return word === undefined || word === "ERR" ? "unreachable" : "refused";
}

module.exports = { LockgateError, NotAcquired, LockLost, NotLockgate, answered, passes, reasonOf };
