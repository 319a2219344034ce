// The types of both modules, for ioredis and node-redis alike: a client is known by what it can do.

/** A client of ioredis (Redis, Cluster) or of node-redis (createClient, createClientPool, createCluster). */
export type Client = { sendCommand(...words: never[]): unknown };

/** What LOCK.ATTACH can be sent over: a client, a pipeline of ioredis, or a multi() of node-redis. */
export type Attachable =
  | { call(...words: never[]): unknown }
  | { sendCommand(words: never, ...more: never[]): Promise<unknown> }
  | { addCommand(words: never, ...more: never[]): unknown };

export interface LockOptions {
  /** How long to wait for the lock, in milliseconds. 0: not at all. Left out: as long as it takes. */
  wait?: number;
  /** Takes a free one of so many permits; `grant.name` is its name. */
  permits?: number;
  /** Shares the lock with other readers; a reader has the fence 0. */
  shared?: boolean;
  /** Ends the waiting. Under the lock it aborts the grant's signal too. */
  signal?: AbortSignal;
}

export interface OnceOptions {
  /** For how long nobody else runs the work, from when the lock was granted, in milliseconds. */
  atLeast: number;
  signal?: AbortSignal;
}

/** A lock that was acquired. */
export interface Grant<C = unknown> {
  /** The lock's name: of a permit, that of the one which was granted. */
  readonly name: string;
  readonly names: readonly string[];
  readonly token: string;
  /** A number that grows from grant to grant; with several locks, that of the first. */
  readonly fence: number;
  /** The fences of several locks, in the order of their names. */
  readonly fences: readonly number[];
  /** Aborts when the lock is lost, with a LockLost as its reason, or when the caller's signal aborts. */
  readonly signal: AbortSignal;
  /** Whether the lock is lost. */
  readonly lost: boolean;
  /** How much longer the lock is surely held, in milliseconds, by the clock; 0 once it is lost or released. */
  remaining(): number;
  /** Throws LockLost if the lock is lost, and LockgateError if it was released. */
  check(): void;
  /** Sends a command on the lock's own connection, whose writes guards let pass. */
  execute(...words: (string | number | Buffer)[]): Promise<unknown>;
  /** The client on the lock's own connection. Any use of it throws LockLost once the lock is lost. */
  readonly redis: C;
  /** Sends LOCK.ATTACH over another connection, or puts it into a pipeline, before guarded writes. */
  attach<T extends Attachable>(target: T): T extends { exec(): unknown; duplicate?: undefined } ? T : Promise<void>;
  /** Gives the lock back. Rejects with LockLost if it was lost before. */
  release(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** Runs work under a lock, and gives the lock back. */
export function lock<C extends Client, T>(
  client: C,
  key: string | readonly string[],
  options: LockOptions,
  work: (grant: Grant<C>) => T | PromiseLike<T>,
): Promise<T>;
export function lock<C extends Client, T>(
  client: C,
  key: string | readonly string[],
  work: (grant: Grant<C>) => T | PromiseLike<T>,
): Promise<T>;
/** Acquires a lock, which is held until `release()`. */
export function lock<C extends Client>(
  client: C,
  key: string | readonly string[],
  options?: LockOptions,
): Promise<Grant<C>>;

/** Makes a function that does its work if the lock is free, and otherwise resolves to undefined. */
export function once<C extends Client>(
  client: C,
  key: string,
  options: OnceOptions,
): <A extends unknown[], T>(
  work: (grant: Grant<C>, ...words: A) => T | PromiseLike<T>,
) => (...words: A) => Promise<T | undefined>;

/** The errors of this package. Errors of the proxy or the data node are those of the client's library. */
export class LockgateError extends Error {
  readonly cause?: unknown;
}

/** The lock was not to be had within `wait`. */
export class NotAcquired extends LockgateError {
  /** Whether a client holds it, or why it could not be asked for ("refused": the proxy says to try again). */
  readonly reason: "held" | "no quorum" | "unreachable" | "refused";
}

/** The lock is not held any more, or not known to be. */
export class LockLost extends LockgateError {}

/** What answers is no Lockgate proxy. */
export class NotLockgate extends LockgateError {}
