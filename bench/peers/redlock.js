// node-redlock over all lock nodes: `redlock.js pairs|contend CLIENTS SECONDS PORT…`
"use strict";
const Redis = require("ioredis");
const Redlock = require("redlock").default;

const [mode, clients, seconds, ...ports] = process.argv.slice(2);
const nodes = ports.map((port) => new Redis(Number(port), "127.0.0.1"));
// Its defaults (200 ms and up to 100 more between tries) but for the number of retries:
// who waits goes on until it has the lock. POLL_MS has it ask more often.
const settings = { retryCount: -1 };
if (process.env.POLL_MS) {
  settings.retryDelay = Number(process.env.POLL_MS);
  settings.retryJitter = settings.retryDelay / 2;
}
const redlock = new Redlock(nodes, settings);
redlock.on("error", () => {});

const counts = new Array(Number(clients)).fill(0);
const gaps = [];
let released = 0;
let last = -1;

async function run(client, until) {
  const key = mode === "pairs" ? `pairs:${client}` : "contended";
  while (performance.now() < until) {
    const lock = await redlock.acquire([key], 10000);
    // Who takes it again at once, past all who wait, has been handed nothing.
    if (last !== client && released) gaps.push((performance.now() - released) * 1000);
    last = client;
    counts[client] += 1;
    released = performance.now();
    await lock.release();
  }
}

async function main() {
  await Promise.all(nodes.map((node) => node.ping()));
  const begun = performance.now();
  const until = begun + 1000 * Number(seconds);
  const running = counts.map((_, client) => run(client, until));
  // Those who poll may be far from their next try when the time is up.
  const late = new Promise((done) => setTimeout(done, 1000 * seconds + 500));
  await Promise.race([Promise.all(running), late]);
  const took = Math.min((performance.now() - begun) / 1000, Number(seconds));
  gaps.sort((a, b) => a - b);
  const at = (share) => gaps[Math.floor(share * (gaps.length - 1))] ?? 0;
  console.log(JSON.stringify({ grants: counts, handovers: gaps.length, seconds: took, gap_us: [at(0.5), at(0.99)] }));
  process.exit(0);
}
main();
