// One connection of a lock's own, made with the settings of the application's client (ioredis or node-redis).
// It never reconnects and sends nothing twice, as a new connection holds no lock. Its only time-outs are those that
// ask() is given, as a LOCK may wait for longer than the client's own.
"use strict";

const { answered } = require("./errors.cjs");

/** How long what needs no waiting may take, in milliseconds: to connect, LOCK without WAIT, UNLOCK. */
const ANSWER = 5_000;

const nothing = () => {};
/** A client of each pool, whose settings it tells. */
const members = new WeakMap();

const isCluster = (client) => Boolean(client?.isCluster || client?.masters);
const isPool = (client) => typeof client?.totalClients === "number";

/** A server as the application's client names it. */
class Server {
  constructor(client, origin, address) {
    const options = client.options ?? {};
    this.client = client;
    this.isIoredis = typeof client.call === "function";
    /** Where another node of a cluster is, if that one has the lock's slot. */
    this.address = address;
    const { host = "localhost", port = 6379, path } = this.isIoredis ? options : (options.socket ?? {});
    this.where = path ?? (options.sentinels ? `the master '${options.name}'` : `${host}:${port}`);
    if (address) this.where = `${address.host ?? host}:${address.port}`;
    /** The same for all clients of one proxy; of a cluster, the client, as it has many addresses. */
    this.origin = origin ?? this.where;
  }

  /** The server of a client, of a pool, or of any node of a cluster: a node that has not the lock's slot says so. */
  static async of(client) {
    let one = client;
    if (client?.isCluster) one = client.nodes("master")[0];
    else if (Array.isArray(client?.masters)) one = await client.nodeClient(client.masters[0]);
    else if (isPool(client)) {
      one = members.get(client) ?? (await client.execute((member) => member));
      members.set(client, one);
    }
    // A client of Sentinels finds other servers than the proxy.
    if (typeof one?.duplicate !== "function" || one.getSentinelNode) {
      throw new TypeError("lock() needs a connected client of ioredis (5 or later) or node-redis (4 or later)");
    }
    return new Server(one, isCluster(client) ? client : undefined);
  }

  /** The server at the address that a MOVED names. */
  moved(message) {
    const [, host, port] = /^MOVED \d+ (.*):(\d+)/.exec(message);
    return new Server(this.client, this.origin, { ...(host && { host }), port: Number(port) });
  }

  /** A client of the same library that is not connected yet. */
  duplicate() {
    const { client, address } = this;
    if (this.isIoredis) {
      return client.duplicate({
        ...(address && { ...address, path: undefined, sentinels: undefined }),
        lazyConnect: true,
        retryStrategy: null,
        reconnectOnError: null,
        enableOfflineQueue: false,
        enableReadyCheck: false, // LOCK asks the data node itself
        enableAutoPipelining: false,
        commandTimeout: undefined,
        socketTimeout: undefined,
        monitor: false,
      });
    }
    const giveUp = () => new Error("the connection of a lock is not made anew");
    return client.duplicate({
      ...(address && { url: undefined }),
      socket: { ...client.options?.socket, ...address, reconnectStrategy: giveUp, socketTimeout: undefined },
      commandOptions: { ...client.options?.commandOptions, timeout: undefined },
      commandsQueueMaxLength: undefined,
      disableOfflineQueue: true,
      pingInterval: undefined,
      clientSideCache: undefined,
      emitInvalidate: false,
      legacyMode: false,
    });
  }
}

class Connection {
  #isIoredis;
  #isReady = false;
  #error;

  constructor(server) {
    this.#isIoredis = server.isIoredis;
    this.client = server.duplicate();
    this.hasEnded = false;
    /** Called once, at the end of a connection that was ready. */
    this.onEnd = nothing;
    this.client.on("error", (error) => {
      this.#error ??= error;
      // ioredis tells of what does not end the connection, too; node-redis is not told to go on after any.
      if (!this.#isIoredis && this.#isReady) this.#end();
    });
    this.client.on("end", () => this.#end());
  }

  #end() {
    if (this.hasEnded) return;
    this.hasEnded = true;
    if (this.#isReady) this.onEnd(this.#error);
  }

  async connect() {
    const connecting = this.client.connect();
    // A connection that was given up while it was made must not stay.
    connecting.then(() => this.hasEnded && this.close(), nothing);
    try {
      await within(ANSWER, connecting, "connecting");
      if (this.hasEnded) throw this.#error ?? new Error("the connection has ended");
    } catch (error) {
      this.close();
      throw this.#error ?? error;
    }
    this.#isReady = true;
  }

  /** Sends a command; the connection is of no use after a time-out. */
  async ask(words, limit) {
    const sent = words.map((word) => (Buffer.isBuffer(word) ? word : String(word)));
    const reply = this.#isIoredis
      ? this.client.call(...sent)
      : this.client.sendCommand(sent, { typeMapping: {} });
    try {
      return await within(limit, reply, sent[0]);
    } catch (error) {
      // Some versions of ioredis count as ready when the password was refused, and end then.
      throw answered(error) === undefined && answered(this.#error) !== undefined ? this.#error : error;
    }
  }

  /** Ends the connection, which releases its session locks. */
  close() {
    this.hasEnded = true;
    try {
      const { client } = this;
      if (this.#isIoredis) client.disconnect();
      else if (client.destroy) client.destroy();
      else client.disconnect().catch(nothing);
    } catch {
      // It had ended.
    }
  }

  /** Lets the process end in spite of this connection. */
  unref() {
    (this.#isIoredis ? this.client.stream : this.client).unref?.();
  }
}

/** What is promised, or an error if it takes longer than so many milliseconds. */
function within(limit, promise, what) {
  if (!Number.isFinite(limit)) return promise;
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no answer to ${what} for ${Math.round(limit)} ms`)), limit);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

module.exports = { ANSWER, Connection, Server, isCluster, isPool };
