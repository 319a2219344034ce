// ioredis's Cluster through fronts: ioredis.js PORT 2|3. See redis_py.py.
"use strict";

const assert = require("node:assert/strict");
const Redis = require("ioredis");
const { KEYS, rounds } = require("./common.js");

const [port, protocol] = process.argv.slice(2).map(Number);
const cluster = new Redis.Cluster([{ host: "127.0.0.1", port }], {
  redisOptions: { protocol, commandTimeout: 5000 },
});
cluster.on("error", () => {});

async function round(number) {
  for (const key of KEYS) {
    await cluster.set(`io${protocol}:${key}`, number);
    assert.equal(Number(await cluster.get(`io${protocol}:${key}`)), number);
  }
  const all = KEYS.map((key) => cluster.incr(`io${protocol}:${key}`));
  assert.deepEqual(await Promise.all(all), KEYS.map(() => number + 1));
  const lock = `io${protocol}:lock:${process.hrtime.bigint()}`;
  const [token] = await cluster.call("LOCK", lock, "PX", "30000");
  assert.equal(await cluster.call("LOCK", lock, "PX", "30000"), null);
  assert.equal(await cluster.call("UNLOCK", lock, token), 1);
}

rounds(round, () => cluster.nodes("all").map(({ options }) => `${options.host}:${options.port}`));
