// Real work by ioredis through the proxy.
//
//     node ioredis.js PORT 2|3
//
// The second argument is the RESP version. Every promise below is a function; the
// first that fails ends the run with its stack and status 1. It knows the proxy
// only as a Redis on that port.
"use strict";

const assert = require("node:assert/strict");
const crypto = require("node:crypto");
const { setTimeout: sleep } = require("node:timers/promises");
const Redis = require("ioredis");

const [port, protocol] = process.argv.slice(2).map(Number);
// Milliseconds: nothing here may take longer, so that a lost reply is a failure.
const LIMIT = 10_000;

let opened = [];

function client(options = {}) {
  const redis = new Redis({
    port,
    host: "127.0.0.1",
    protocol,
    connectTimeout: LIMIT,
    commandTimeout: LIMIT,
    // A command is never sent twice: a connection that broke must show.
    retryStrategy: null,
    maxRetriesPerRequest: 0,
    ...options,
  });
  redis.on("error", (error) => {
    console.error("connection:", error);
    process.exit(1);
  });
  opened.push(redis);
  return redis;
}

// The next count events of that name, collected from now on.
function collect(emitter, name, count) {
  const seen = [];
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`${seen.length} of ${count} ${name}`)), LIMIT);
    const handler = (...all) => {
      if (seen.push(all) === count) {
        clearTimeout(timer);
        emitter.off(name, handler);
        resolve(seen);
      }
    };
    emitter.on(name, handler);
  });
}

async function the_protocol_is_the_one_asked_for() {
  // Maps come as a list of keys and values in turn, unless replyMapping says otherwise.
  const hello = await client().call("HELLO");
  assert.equal(hello[hello.indexOf("proto") + 1], protocol);
}

async function every_type_comes_back_as_it_went() {
  const r = client();
  const binary = Buffer.concat([Buffer.from([...Array(256).keys()]), Buffer.from("\r\n*1\r\n$-1\r\n")]);
  assert.equal(await r.set("s", binary), "OK");
  assert.deepEqual(await r.getBuffer("s"), binary);
  assert.equal(await r.get("none"), null);
  await r.hset("h", { a: "1", b: "2" });
  assert.deepEqual({ ...(await r.hgetall("h")) }, { a: "1", b: "2" });
  assert.equal(await r.rpush("l", ...Array(100).keys()), 100);
  assert.deepEqual(await r.lrange("l", 0, -1), Array.from(Array(100).keys(), String));
  await r.sadd("set", "x", "y");
  assert.deepEqual((await r.smembers("set")).sort(), ["x", "y"]);
  await r.zadd("z", 0.5, "half", 1, "one");
  assert.deepEqual(await r.zrange("z", 0, -1), ["half", "one"]);
  const entry = await r.xadd("x", "*", "f", "v");
  assert.deepEqual(await r.xrange("x", "-", "+"), [[entry, ["f", "v"]]]);
  await assert.rejects(r.incr("s"), /not an integer/);
  await assert.rejects(r.call("NOSUCH"), /unknown command/);
}

async function a_long_pipeline_is_answered_in_order() {
  const r = client();
  const pipeline = r.pipeline();
  for (let n = 0; n < 5000; n++) {
    pipeline.set(`k${n}`, "v".repeat(n % 700)).get(`k${n}`);
  }
  pipeline.call("NOSUCH");
  const answers = await pipeline.exec();
  assert.equal(answers.length, 10_001);
  for (let n = 0; n < 5000; n++) {
    assert.deepEqual(answers[2 * n + 1], [null, "v".repeat(n % 700)]);
  }
  assert.match(answers[10_000][0].message, /unknown command/);
}

async function autopipelined_commands_find_their_replies() {
  const r = client({ enableAutoPipelining: true });
  const all = Array.from(Array(2000).keys());
  await Promise.all(all.map((n) => r.set(`k${n}`, n)));
  assert.deepEqual(await Promise.all(all.map((n) => r.get(`k${n}`))), all.map(String));
}

async function transactions_are_atomic_and_watched() {
  const r = client();
  assert.deepEqual(await r.multi().set("a", "x").incr("b").get("a").exec(), [
    [null, "OK"],
    [null, 1],
    [null, "x"],
  ]);
  const [, [error]] = await r.multi().set("a", "x").incr("a").exec();
  assert.match(error.message, /not an integer/);
  await assert.rejects(r.multi().set("a", "y").call("NOSUCH").exec(), /EXECABORT/);
  assert.equal(await r.get("a"), "x");
  await r.watch("a");
  await client().set("a", "theirs");
  assert.equal(await r.multi().set("a", "mine").exec(), null);
  assert.equal(await r.get("a"), "theirs");
}

async function published_messages_arrive() {
  const [subscriber, r] = [client(), client()];
  assert.equal(await subscriber.subscribe("news", "more"), 2);
  assert.equal(await subscriber.psubscribe("n?ws"), 3);
  const messages = collect(subscriber, "message", 200);
  const byPattern = collect(subscriber, "pmessage", 200);
  for (let n = 0; n < 200; n++) {
    assert.equal(await r.publish("news", n), 2);
  }
  assert.deepEqual(await messages, Array.from(Array(200).keys(), (n) => ["news", String(n)]));
  assert.equal((await byPattern)[199][2], "199");
  assert.equal(await subscriber.unsubscribe("news", "more"), 1);
  assert.equal(await subscriber.punsubscribe("n?ws"), 0);
  assert.equal(await subscriber.get("none"), null);
}

async function blocking_pops_wait_and_time_out() {
  const [waiting, r] = [client({ commandTimeout: undefined }), client()];
  assert.equal(await waiting.blpop("jobs", 0.1), null);
  const job = waiting.blpop("jobs", 0);
  await sleep(50);
  await r.rpush("jobs", "x");
  assert.deepEqual(await job, ["jobs", "x"]);
}

async function scripts_are_loaded_and_called_by_digest() {
  const r = client();
  await r.script("FLUSH");
  r.defineCommand("add", { numberOfKeys: 1, lua: "return redis.call('INCRBY', KEYS[1], ARGV[1])" });
  assert.deepEqual([await r.add("n", 5), await r.add("n", 5), await r.add("n", 5)], [5, 10, 15]);
  assert.deepEqual(await r.eval("return {1, {2, 'x', false}}", 0), [1, [2, "x", null]]);
}

async function large_values_come_back_whole() {
  const r = client();
  const value = crypto.randomBytes(24 << 20);
  assert.equal(await r.set("large", value), "OK");
  assert.ok((await r.getBuffer("large")).equals(value));
  await r.del("large");
}

async function databases_belong_to_the_connection() {
  const [first, second] = [client({ db: 1 }), client({ db: 2 })];
  await Promise.all([first.set("k", "one"), second.set("k", "two")]);
  assert.deepEqual(await Promise.all([first.get("k"), second.get("k")]), ["one", "two"]);
  assert.equal(await client().get("k"), null);
}

async function monitor_sees_what_others_do() {
  const r = client();
  // Both ready before one watches: ioredis takes a line right behind MONITOR's OK,
  // as of the INFO it asks for when it connects, for a reply to nothing.
  await r.ping();
  const begun = client();
  await begun.ping();
  const monitor = await begun.monitor();
  opened.push(monitor);
  // Not the INFO that connections ask for when they begin.
  const seen = new Promise((resolve) =>
    monitor.on("monitor", (time, words) => words.includes("watched") && resolve(words)));
  await r.set("watched", "1");
  assert.deepEqual((await seen).map((word) => word.toLowerCase()), ["set", "watched", "1"]);
}

async function lock_unlock_and_renew_are_plain_commands() {
  const r = client();
  const [token, fence, validity] = await r.call("LOCK", "job", "PX", 5000);
  assert.ok(token.length >= 16 && fence > 0 && validity > 0 && validity <= 5000);
  assert.equal(await r.call("LOCK", "job", "other", "PX", 5000), null);
  assert.ok((await r.call("LOCK", "job", token, "PX", 5000))[1] >= fence);
  const renewed = await r.call("RENEW", "job", token, "PX", 9000);
  assert.ok(renewed > 5000 && renewed <= 9000);
  assert.equal(await r.call("UNLOCK", "job", "other"), 0);
  assert.equal(await r.call("UNLOCK", "job", token), 1);
  assert.equal(await r.call("UNLOCK", "job", token), 0);
  // A token that was left out is remembered on the connection.
  assert.ok((await r.call("LOCK", "job", "EX", 5))[1] > fence);
  assert.equal(await r.call("UNLOCK", "job"), 1);
  await assert.rejects(r.call("LOCK"), /wrong number of arguments for 'lock' command/);
  await assert.rejects(r.call("LOCK", "job", "PX", 0), /invalid expire time in 'lock' command/);
}

async function lock_keeps_its_place_in_a_pipeline() {
  const r = client();
  const pipeline = r.pipeline();
  for (let n = 0; n < 20; n++) {
    pipeline.set("k", n).call("LOCK", "job", `t${n}`, "PX", 5000).get("k");
    pipeline.call("UNLOCK", "job", `t${n}`);
  }
  const answers = (await pipeline.exec()).map(([error, value]) => assert.ifError(error) ?? value);
  for (let n = 0; n < 20; n++) {
    const [stored, grant, value, released] = answers.slice(4 * n, 4 * n + 4);
    assert.deepEqual([stored, grant[0], value, released], ["OK", `t${n}`, String(n), 1]);
  }
}

async function many_locks_at_once_share_a_connection() {
  const r = client();
  const all = Array.from(Array(200).keys());
  const grants = await Promise.all(all.map((n) => r.call("LOCK", `many:${n}`, `t${n}`, "EX", 10)));
  assert.deepEqual(grants.map((grant) => grant[0]), all.map((n) => `t${n}`));
  const released = await Promise.all(all.map((n) => r.call("UNLOCK", `many:${n}`, `t${n}`)));
  assert.deepEqual(released, all.map(() => 1));
}

async function lock_spoils_a_transaction() {
  const r = client();
  await assert.rejects(r.multi().set("spoilt", 1).call("LOCK", "job", "PX", 5000).exec(), /EXECABORT/);
  assert.equal(await r.exists("spoilt"), 0);
}

async function lock_excludes_clients_and_its_fences_grow() {
  const r = client();
  await r.set("counter", 0);
  const fences = [];
  const worker = async () => {
    const mine = client();
    for (let round = 0; round < 10; round++) {
      let grant;
      while ((grant = await mine.call("LOCK", "shared", "PX", 8000)) === null) {
        await sleep(2);
      }
      const seen = Number(await mine.get("counter"));
      fences.push(grant[1]);
      await sleep(1);
      await mine.set("counter", seen + 1);
      assert.equal(await mine.call("UNLOCK", "shared"), 1);
    }
  };
  await Promise.all(Array.from(Array(5), worker));
  assert.equal(await r.get("counter"), "50");
  assert.ok(fences.every((fence, n) => n === 0 || fence > fences[n - 1]), "a fence did not grow");
}

const promises = [
  the_protocol_is_the_one_asked_for,
  every_type_comes_back_as_it_went,
  a_long_pipeline_is_answered_in_order,
  autopipelined_commands_find_their_replies,
  transactions_are_atomic_and_watched,
  published_messages_arrive,
  blocking_pops_wait_and_time_out,
  scripts_are_loaded_and_called_by_digest,
  large_values_come_back_whole,
  databases_belong_to_the_connection,
  monitor_sees_what_others_do,
  lock_unlock_and_renew_are_plain_commands,
  lock_keeps_its_place_in_a_pipeline,
  many_locks_at_once_share_a_connection,
  lock_spoils_a_transaction,
  lock_excludes_clients_and_its_fences_grow,
];

async function run() {
  for (const promise of promises) {
    await client().flushall();
    const started = Date.now();
    process.stdout.write(`${promise.name} `);
    await promise();
    console.log(`${((Date.now() - started) / 1000).toFixed(2)} s`);
    opened.forEach((redis) => redis.disconnect());
    opened = [];
  }
  console.log(`ioredis ${require("ioredis/package.json").version} RESP${protocol} ok`);
}

run().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
