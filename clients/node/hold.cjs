// A lock that is held: confirmed every third of its validity on a connection of its own, and given back.
// It knows neither how the lock was taken nor who uses it.
"use strict";

const { ANSWER, Connection } = require("./connection.cjs");
const { LockLost, answered } = require("./errors.cjs");

/** Pause before a question that was not answered is asked again, in milliseconds. */
const AGAIN = 250;
/** A monotonic clock. */
const now = () => performance.now();

class Hold {
  #server;
  #connection;
  #ttl;
  #since;
  #validity;
  #until;
  #clock;
  #pausing;
  #wake = () => {};
  #isUnrefed = false;
  #trouble;

  /** `ttl` is that of a lease. `since` is when the validity began: before it was asked for. */
  constructor(server, connection, { names, token, fences, validity, since, ttl, shared }) {
    this.#server = server;
    this.#connection = connection;
    this.#ttl = ttl;
    this.#since = since;
    this.#validity = validity;
    this.#until = since + validity;
    this.origin = server.origin;
    this.names = names;
    this.token = token;
    this.fences = fences;
    this.shared = shared;
    /** How many blocks use it: nested ones use that of the outer. */
    this.users = 1;
    this.isReleased = false;
    /** The LockLost, once it is lost. */
    this.loss = undefined;
    /** Called when it is lost. */
    this.watchers = new Set();
    this.#watch(connection);
    this.#setClock();
    this.#keep();
  }

  /** The client on the lock's own connection. */
  get client() {
    return this.#connection.client;
  }

  /** How much longer the lock is surely held, in milliseconds. */
  remaining() {
    this.tick();
    return this.loss || this.isReleased ? 0 : this.#until - now();
  }

  /** Notices that the validity is over, even where no timer could fire. */
  tick() {
    if (now() >= this.#until) this.#lose("it was not confirmed within its validity", this.#trouble);
  }

  /** Sends a command on the lock's own connection. */
  async execute(words) {
    try {
      return await this.#connection.ask(words, Infinity);
    } catch (error) {
      this.note(error);
      throw this.loss ?? error;
    }
  }

  /** Notes an error that says that the lock is lost. */
  note(error) {
    if (answered(error) === "LOCKLOST") this.#lose("the proxy said so", error);
  }

  /** A block does not use it any more. The last one gives it back, and throws LockLost if it was lost. */
  async leave() {
    if (--this.users > 0) return;
    this.isReleased = true;
    clearTimeout(this.#clock);
    this.#wake();
    try {
      if (!this.loss) await this.#giveBack();
    } finally {
      this.#connection.close();
    }
    if (this.loss) throw this.loss;
  }

  /** Lets the process end in spite of it. */
  unref() {
    this.#isUnrefed = true;
    this.#connection.unref();
    this.#clock?.unref();
    this.#pausing?.unref();
  }

  async #keep() {
    let next = this.#since + this.#validity / 3;
    for (;;) {
      if (this.loss || this.isReleased) return;
      await this.#pause(next - now());
      if (this.loss || this.isReleased) return;
      const asked = now();
      try {
        // A session lock ends with its connection, which is therefore never given up.
        const left = await this.#renew(this.#ttl, this.#ttl === undefined ? Infinity : this.#validity / 3);
        if (left === 0) return this.#lose("the proxy answered that it is not held any more");
        this.#until = asked + left;
        this.#trouble = undefined;
        this.#setClock();
        next = asked + this.#validity / 3;
      } catch (error) {
        this.#trouble = error;
        next = now() + AGAIN;
      }
    }
  }

  async #giveBack() {
    const { names, token } = this;
    try {
      let isHeld;
      const rest = this.#ttl === undefined ? 0 : Math.ceil(this.#since + this.#ttl - now());
      if (rest >= 4) {
        // A lease lasts for its time, even after shorter work. If it was prolonged, it lasts too long now.
        if (this.#until <= now() + rest) return;
        isHeld = (await this.#renew(rest, ANSWER)) > 0;
      } else if (names.length === 1) {
        isHeld = Number(await this.#ask(["UNLOCK", names[0], token], ANSWER)) === 1;
      } else {
        const released = await this.#ask(["MUNLOCK", names.length, ...names, token], ANSWER);
        isHeld = Number(released) === names.length;
      }
      if (!isHeld) this.loss = this.#lost("the proxy answered that it was not held any more");
    } catch (error) {
      // Whether it was given back is not known. It ends with its connection, or by its time.
      if (answered(error) === "LOCKLOST") this.loss = this.#lost("the proxy said so", error);
      else if (now() >= this.#until) this.loss = this.#lost("it was not confirmed within its validity", error);
    }
  }

  #renew(ttl, limit) {
    return renew((words) => this.#ask(words, limit), this.names, this.token, ttl);
  }

  async #ask(words, limit) {
    if (this.#ttl === undefined) return this.#connection.ask(words, limit);
    // A lease outlives its connection.
    try {
      if (this.#connection.hasEnded) {
        this.#connection = new Connection(this.#server);
        await this.#connection.connect();
        this.#watch(this.#connection);
        await this.#connection.ask(["LOCK.ATTACH", this.names[0], this.token], limit);
      }
      return await this.#connection.ask(words, limit);
    } catch (error) {
      if (answered(error) === undefined) this.#connection.close();
      throw error;
    }
  }

  #watch(connection) {
    const ended = (error) => {
      if (this.#ttl === undefined) this.#lose("the connection that held it has ended", error);
      else this.#wake();
    };
    connection.onEnd = ended;
    if (connection.hasEnded) ended();
  }

  #lose(why, cause) {
    if (this.loss || this.isReleased) return;
    this.loss = this.#lost(why, cause);
    clearTimeout(this.#clock);
    // Nothing more is to be sent over this connection as if the lock were held. But others of several locks, and one
    // that the proxy may still hold after its validity, keep other clients away until the work has stopped.
    if (this.names.length === 1 && now() < this.#until) this.#connection.close();
    this.#wake();
    for (const watcher of this.watchers) watcher();
  }

  #lost(why, cause) {
    return new LockLost(`the lock ${quoted(this.names)} was lost: ${why}`, cause && { cause });
  }

  #setClock() {
    clearTimeout(this.#clock);
    if (this.loss || this.isReleased) return;
    const ring = () => {
      this.tick();
      this.#setClock();
    };
    this.#clock = setTimeout(ring, Math.ceil(this.#until - now()));
    if (this.#isUnrefed) this.#clock.unref();
  }

  #pause(limit) {
    return new Promise((resolve) => {
      this.#pausing = setTimeout(resolve, Math.max(0, limit));
      if (this.#isUnrefed) this.#pausing.unref();
      this.#wake = () => {
        clearTimeout(this.#pausing);
        resolve();
      };
    });
  }
}

/** Renews locks. Returns their smallest validity; 0 if one is not held; throws where that is not known. */
async function renew(ask, names, token, ttl) {
  const words = ttl === undefined ? [] : ["PX", ttl];
  const answers = await Promise.allSettled(names.map((name) => ask(["RENEW", name, token, ...words])));
  const validities = answers.map(({ value, reason }) => (answered(reason) === "LOCKLOST" ? 0 : Number(value)));
  if (validities.includes(0)) return 0;
  const failed = answers.find(({ status }) => status === "rejected");
  if (failed) throw failed.reason;
  return Math.min(...validities);
}

/** Names of locks for a message. */
const quoted = (names) => names.map((name) => `'${name}'`).join(", ");

module.exports = { Hold, now, quoted, renew };
