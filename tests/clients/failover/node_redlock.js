// A worker that does its job under a lock of node-redlock, and knows one Redis.
//
//     node node_redlock.js NAME PORT
//
// Prints when it begins and ends. The job takes until a line comes in.
'use strict';

const { Redis } = require('ioredis');
const { default: Redlock, ExecutionError, ResourceLockedError } = require('redlock');

const [name, port] = process.argv.slice(2);
const client = new Redis({ port: Number(port), connectionName: name });
// ioredis connects again by itself, and redlock tells of each attempt by its result.
client.on('error', () => {});
const redlock = new Redlock([client], { retryCount: 0 });
redlock.on('error', () => {});

const note = (what) => process.stdout.write(`${name} ${what}\n`);

async function taken() {
  try {
    return await redlock.acquire(['lock:invoices'], 120_000);
  } catch (error) {
    if (!(error instanceof ExecutionError)) throw error;
    const { votesAgainst } = await error.attempts.at(-1);
    const isHeld = [...votesAgainst.values()].some((vote) => vote instanceof ResourceLockedError);
    note(isHeld ? 'waits' : 'has no connection');
    return undefined;
  }
}

async function main() {
  let lock;
  while (!(lock = await taken())) await new Promise((done) => { setTimeout(done, 100); });
  note('begins');
  await new Promise((done) => { process.stdin.once('data', done); });
  note('ends');
  await lock.release().then(
    () => note('has released the lock'),
    () => note('finds that it has lost the lock'),
  );
  process.exit();
}

main().catch((error) => { console.error(error); process.exit(1); });
