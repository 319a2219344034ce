// node-redis's cluster through fronts: node_redis.js PORT 2|3. See redis_py.py.
"use strict";

const assert = require("node:assert/strict");
const { createCluster } = require("redis");
const { KEYS, rounds } = require("./common.js");

const [port, RESP] = process.argv.slice(2).map(Number);
const cluster = createCluster({
  rootNodes: [{ url: `redis://127.0.0.1:${port}` }],
  RESP,
  defaults: { socket: { connectTimeout: 5000, reconnectStrategy: 100 } },
});
cluster.on("error", () => {});

// A command to a node that is down waits until the client has heard of that.
const soon = (promise) =>
  Promise.race([
    promise,
    new Promise((_, fail) => setTimeout(() => fail(new Error("no answer")), 5000).unref()),
  ]);

async function round(number) {
  for (const key of KEYS) {
    await soon(cluster.set(`nr${RESP}:${key}`, String(number)));
    assert.equal(Number(await soon(cluster.get(`nr${RESP}:${key}`))), number);
  }
  const all = KEYS.map((key) => soon(cluster.incr(`nr${RESP}:${key}`)));
  assert.deepEqual(await Promise.all(all), KEYS.map(() => number + 1));
  const lock = `nr${RESP}:lock:${process.hrtime.bigint()}`;
  const send = (...words) => soon(cluster.sendCommand(lock, false, words));
  const [token] = await send("LOCK", lock, "PX", "30000");
  assert.equal(await send("LOCK", lock, "PX", "30000"), null);
  assert.equal(await send("UNLOCK", lock, token), 1);
}

cluster.connect().then(() =>
  rounds(round, () => [...cluster.masters, ...cluster.replicas].map(({ address }) => address)),
);
