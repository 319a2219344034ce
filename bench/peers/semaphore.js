// n permits for many clients: `semaphore.js lockgate|RedlockSemaphore|Semaphore N CLIENTS HOLD_MS SECONDS PORT…`
"use strict";
const Redis = require("ioredis");
const { RedlockSemaphore, Semaphore } = require("redis-semaphore");

const [kind, n, clients, hold, seconds, ...ports] = process.argv.slice(2);
const connect = () => ports.map((port) => new Redis(Number(port), "127.0.0.1"));
// A library's clients share connections. To Lockgate each has its own, as each waits on it.
const shared = kind === "lockgate" ? [] : connect();
const settings = { lockTimeout: 10000, acquireTimeout: 60000 };
let inside = 0;
let most = 0;
let grants = 0;

function permits() {
  if (kind === "Semaphore") return new Semaphore(shared[0], "gpu", Number(n), settings);
  if (kind === "RedlockSemaphore") return new RedlockSemaphore(shared, "gpu", Number(n), settings);
  const [connection] = connect();
  let held = null;
  return {
    async acquire() {
      held = await connection.call("LOCK", "gpu", "PERMITS", n, "PX", "10000", "WAIT", "0");
      if (held === null) throw new Error("not granted");
    },
    release: () => connection.call("UNLOCK", held[3], held[0]),
  };
}

async function run(until) {
  const semaphore = permits();
  while (performance.now() < until) {
    await semaphore.acquire();
    inside += 1;
    grants += 1;
    most = Math.max(most, inside);
    await new Promise((done) => setTimeout(done, Number(hold)));
    inside -= 1;
    await semaphore.release();
  }
}

async function main() {
  const until = performance.now() + 1000 * Number(seconds);
  const late = new Promise((done) => setTimeout(done, 1000 * seconds + 500));
  await Promise.race([Promise.all(Array.from({ length: Number(clients) }, () => run(until))), late]);
  const used = process.cpuUsage();
  console.log(JSON.stringify({ grants, most, cpu_ms: (used.user + used.system) / 1000 }));
  process.exit(0);
}
main();
