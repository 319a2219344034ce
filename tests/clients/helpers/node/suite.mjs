// What the package promises, tried with real servers. It runs where run.mjs has installed the package.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Worker } from "node:worker_threads";
import { lock, LockLost, LockgateError, NotAcquired, NotLockgate, once } from "lockgate";
import { Deployment, eventually, freePort, open, PASSWORD, send, stop } from "./deployment.mjs";

/** Long enough for a busy machine to confirm a lock in time. */
const LOCKS = { default_ttl: "10s", max_wait: "1s", shared: "yes" };
const AsyncFunction = (async () => {}).constructor;
const opened = [];
let deployment;
let operator;

before(async () => {
  deployment = await Deployment.start(LOCKS);
  operator = await client("ioredis");
});

after(async () => {
  await eventually("no session lock is left", async () => {
    return /^session_locks:0\r?$/m.test(await send(operator, "LOCKGATE", "INFO"));
  });
  for (const one of opened) await (one.destroy ?? one.disconnect).call(one);
  await deployment.stop();
});

async function client(library, port = deployment.proxy.port, more = {}) {
  const one = await open(library, port, more);
  opened.push(one);
  return one;
}

/** A key that no other test uses. */
let keys = 0;
const fresh = (name = "key") => `${name}:${keys++}`;

const take = (key, port) => operatorOf(port).then((one) => send(one, "LOCKGATE", "UNLOCK", key, "ANY"));
const operatorOf = async (port) => (port ? client("ioredis", port) : operator);
const waiters = async (key) => (await send(operator, "LOCKGATE", "WAITERS", key)).length;
const aborted = ({ signal }) => new Promise((resolve) => signal.addEventListener("abort", resolve));
/** Waits until a lock has been renewed: by then less than 6 s would be left of its first validity. */
async function renewed(grant) {
  await sleep(4_000);
  await eventually("it is renewed", () => {
    grant.check();
    return grant.remaining() > 6_500;
  });
}
/** Whether anybody could have the lock now. */
const isFree = async (redis, key) => lock(redis, key, { wait: 0 }, () => true).catch(refused);
const refused = (error) => {
  assert.ok(error instanceof NotAcquired && error.reason === "held", error);
  return false;
};

/** Runs program.mjs to its end. Returns what it printed. */
async function program(what, library, key, { times = 0, words = [], onLine, port = deployment.proxy.port } = {}) {
  const said = { out: "", err: "" };
  const child = spawn("node", [...words, "program.mjs", what, port, library, key, times]);
  child.stdout.on("data", (data) => {
    said.out += data;
    onLine?.(said.out, child);
  });
  child.stderr.on("data", (data) => (said.err += data));
  said.status = await new Promise((resolve) => child.once("close", resolve));
  return said;
}

test("require and import give the same module", () => {
  assert.equal(createRequire(import.meta.url)("lockgate").LockLost, LockLost);
});

for (const page of ["page.md", "node_modules/lockgate/README.md"]) {
  test(`the first lines of ${page} work`, async () => {
    const [, code] = /^```javascript\n(.*?)^```$/ms.exec(readFileSync(page, "utf8").replace("```js", "```javascript"));
    const lines = code.replace(/^(import|const) .*\n/m, "");
    assert.equal(lines.trim().split("\n").length, 3);
    const seen = [];
    const work = ({ signal, fence }) => seen.push(signal.aborted, fence > 0);
    await new AsyncFunction("lock", "redis", "work", lines)(lock, operator, work);
    assert.deepEqual(seen, [false, true]);
  });
}

for (const library of ["ioredis 2", "redis"]) {
  test(`${library}: a lock is taken, confirmed and given back`, async () => {
    const [redis, key] = [await client(library), fresh()];
    const result = await lock(redis, key, { wait: 10_000 }, async ({ signal, fence, name, remaining }) => {
      assert.ok(fence > 0 && name === key && !signal.aborted);
      return 7;
    });
    assert.equal(result, 7);
    assert.ok(await isFree(redis, key));
  });
}

describe("many processes", { concurrency: 2 }, () => {
  test("lose no update", async () => {
    const key = fresh();
    const libraries = ["ioredis", "redis", "ioredis 2", "redis 2"];
    const ends = libraries.map((library) => program("add", library, key, { times: 15 }));
    for (const { status, err } of await Promise.all(ends)) assert.equal(status, 0, err);
    assert.equal(await send(operator, "GET", `value:${key}`), String(libraries.length * 15));
  });
});

test("no port is given out twice", async () => {
  const ports = new Set();
  for (let count = 1; count <= 1_000; count++) assert.equal(ports.add(await freePort()).size, count);
});

describe("both libraries", { concurrency: 2 }, () => {
  promises("ioredis");
  promises("redis 2");
});

/** All of this with each library, side by side. */
function promises(library) {
  describe(library, { concurrency: 10 }, () => {
    let redis;
    before(async () => {
      redis = await client(library);
    });

    test("without a wait, a held lock is refused at once", async () => {
      const key = fresh();
      await lock(redis, key, async () => {
        assert.equal(await isFree(await client(library), key), true, "the task has it itself");
        const other = await lockElsewhere(key, { wait: 0 });
        assert.equal(other, "held");
      });
      assert.ok(await isFree(redis, key));
    });

    test("the wait ends in time, and is longer than one WAIT may be", async () => {
      const key = fresh();
      const grant = await lock(redis, key);
      const began = performance.now();
      assert.equal(await lockElsewhere(key, { wait: 2_500 }), "held");
      assert.ok(performance.now() - began >= 2_400);
      const waiting = lock(redis, key, { wait: 60_000 }, ({ fence }) => fence);
      await eventually("it waits", async () => (await waiters(key)) === 1);
      await sleep(1_200);
      await grant.release();
      assert.ok((await waiting) > grant.fence);
    });

    test("a grant after a long wait has all of its validity", async () => {
      const patient = await client(library, (await patientProxy()).port);
      const key = fresh();
      const grant = await lock(patient, key);
      const waiting = lock(patient, key, (next) => next.remaining());
      await sleep(6_000);
      await grant.release();
      // What is left of the validity that counts from the LOCK is less than 4 s.
      assert.ok((await waiting) > 4_000);
    });

    test("a plain Redis is named", async () => {
      const plain = await client(library, deployment.data.port);
      await assert.rejects(lock(plain, fresh(), () => assert.fail()), (error) => {
        assert.ok(error instanceof NotLockgate);
        assert.match(error.message, new RegExp(`127.0.0.1:${deployment.data.port} is no Lockgate proxy`));
        return true;
      });
    });

    test("a proxy that is not there is asked again until the wait is over", async () => {
      const port = await freePort();
      const lonely = redis.duplicate(
        redis.call ? { port, lazyConnect: true } : { socket: { ...redis.options.socket, port } },
      );
      const began = performance.now();
      await assert.rejects(lock(lonely, fresh(), { wait: 1_000 }, () => assert.fail()), (error) => {
        assert.ok(error instanceof NotAcquired && error.reason === "unreachable", error);
        assert.match(error.message, new RegExp(`:${port}`));
        return true;
      });
      assert.ok(performance.now() - began >= 900);
    });

    test("an error that does not pass is thrown as it is", async () => {
      await assert.rejects(lock(redis, "", () => assert.fail()), /^[^:]*Error: ERR the key is empty/);
      const wrong = { password: "wrong", credentialsProvider: undefined };
      const stranger = redis.duplicate({ ...wrong, ...(redis.call && { lazyConnect: true }) });
      stranger.on("error", () => {});
      await assert.rejects(lock(stranger, fresh(), () => assert.fail()), /WRONGPASS|NOAUTH/);
      for (const bad of [{ wait: -1 }, { wait: "10" }, { wait: NaN }]) {
        await assert.rejects(lock(redis, fresh(), bad, () => assert.fail()), TypeError);
      }
      await assert.rejects(lock(redis, [], () => assert.fail()), TypeError);
      await assert.rejects(lock({}, fresh(), () => assert.fail()), TypeError);
    });

    test("the client's time-outs, prefix and name are minded", async () => {
      const impatient = redis.call
        ? { commandTimeout: 100, socketTimeout: 100, keyPrefix: "p:", connectionName: "me", db: 3, lazyConnect: true }
        : { commandOptions: { timeout: 100 }, name: "me", database: 3 };
      const patient = await client(library, (await patientProxy()).port);
      const own = patient.duplicate(impatient);
      const key = fresh();
      const grant = await lock(redis, key);
      const waiting = lock(own, key, async (next) => {
        await next.redis.set("here", key);
        const row = await send(patient, "LOCKGATE", "LOCK", key);
        assert.equal(row[row.indexOf("name") + 1], "me");
      });
      // A client that gives up and asks again begins its wait anew.
      await eventually("it waits for longer than its time-outs", async () => {
        const row = (await send(patient, "LOCKGATE", "WAITERS", key)).flat();
        return Number(row[row.indexOf("waited-ms") + 1]) > 1_000;
      });
      await grant.release();
      await waiting;
      const there = await client(library, deployment.proxy.port, redis.call ? { db: 3 } : { database: 3 });
      assert.equal(await send(there, "GET", redis.call ? "p:here" : "here"), key);
    });

    test("a lock that an operator takes back is told as lost, to every use of it", async () => {
      const key = fresh();
      let kept;
      await assert.rejects(
        lock(redis, key, async (grant) => {
          kept = grant;
          const { redis: own } = grant;
          assert.equal(await take(key), 1);
          await aborted(grant);
          assert.ok(grant.signal.reason instanceof LockLost && grant.lost && grant.remaining() === 0);
          assert.match(grant.signal.reason.message, /the proxy answered/);
          assert.throws(() => grant.check(), LockLost);
          assert.throws(() => grant.redis, LockLost);
          assert.throws(() => own.set, LockLost);
          assert.throws(() => grant.attach(redis), LockLost);
          assert.throws(() => grant.signal.throwIfAborted(), LockLost);
          await assert.rejects(grant.execute("SET", key, "late"), LockLost);
        }),
        LockLost,
      );
      assert.throws(() => kept.check(), LockLost);
      assert.equal(await send(operator, "GET", key), null);
    });

    test("a loss that nobody has seen is told when the block ends", async () => {
      const key = fresh();
      await assert.rejects(lock(redis, key, () => take(key)), LockLost);
    });

    test("the work's own error comes first, and an abort is the loss", async () => {
      const key = fresh();
      const own = new Error("of the work");
      const fails = async () => {
        await take(key);
        throw own;
      };
      await assert.rejects(lock(redis, key, fails), (error) => error === own && error.cause instanceof LockLost);
      const stops = async ({ signal }) => {
        await take(key);
        await sleep(60_000, undefined, { signal });
      };
      await assert.rejects(lock(redis, key, stops), LockLost);
    });

    test("a proxy that hangs: the loss is told before another client has the lock", async () => {
      await toldBefore((proxy) => proxy.kill("SIGSTOP"), /not confirmed within its validity/);
    });

    test("a proxy that dies: the loss is told before another client has the lock", async () => {
      await toldBefore((proxy) => proxy.kill("SIGKILL"), /connection that held it has ended/);
    });

    async function toldBefore(fault, why) {
      const proxy = await deployment.startProxy();
      const key = fresh();
      let rival;
      let told;
      const holds = lock(await client(library, proxy.port), key, async (grant) => {
        rival = lock(redis, key, () => performance.now());
        fault(proxy);
        await aborted(grant);
        told = performance.now();
        grant.check();
      });
      await assert.rejects(holds, (error) => error instanceof LockLost && why.test(error.message));
      assert.ok(told <= (await rival));
      await stop(proxy);
    }

    test("a proxy that is upgraded keeps the lock", async () => {
      const proxy = await deployment.startProxy();
      const through = await client(library, proxy.port);
      const id = async () => /process_id:(\d+)/.exec(await send(await operatorOf(proxy.port), "LOCKGATE", "INFO"))[1];
      const key = fresh();
      await lock(through, key, async (grant) => {
        proxy.kill("SIGUSR2");
        await eventually("a new process", async () => Number(await id()) !== proxy.pid);
        deployment.successors.push(Number(await id()));
        await sleep(10_500);
        grant.check();
        assert.equal(await lockElsewhere(key, { wait: 0 }), "held");
      });
    });

    test("too few lock nodes", async () => {
      const few = await Deployment.start(LOCKS);
      const through = await client(library, few.proxy.port);
      const quorum = few.nodes.slice(0, 2);
      const held = lock(through, "job", async (grant) => {
        for (const node of quorum) node.kill("SIGSTOP");
        await aborted(grant);
        await assert.rejects(lock(through, "other", { wait: 300 }, () => assert.fail()), (error) => {
          assert.ok(error instanceof NotAcquired && error.reason === "no quorum", error);
          return true;
        });
        const skips = once(through, "other", { atLeast: 1_000 })(() => assert.fail());
        await assert.rejects(skips(), NotAcquired, "only a held lock is a reason to do nothing");
      });
      await assert.rejects(held, LockLost);
      const waiting = lock(through, "job", () => "again");
      await sleep(500);
      for (const node of quorum) node.kill("SIGCONT");
      assert.equal(await waiting, "again");
      await few.stop();
    });

    test("a task has its lock again, and gives it back once", async () => {
      const key = fresh();
      await lock(redis, key, async (outer) => {
        const inner = await lock(redis, key, async (grant) => grant);
        assert.equal(inner.token, outer.token);
        await lock(redis, key, { shared: true }, () => {});
        assert.throws(() => inner.check(), LockgateError, "the inner block has ended");
        outer.check();
        assert.equal(await lockElsewhere(key, { wait: 0 }), "held");
        // Without it, and for ever, it would wait for itself.
        await assert.rejects(lock(redis, [key, fresh()], () => {}), LockgateError);
        const family = fresh();
        await lock(redis, family, { permits: 2 }, async (first) => {
          await lock(redis, family, { permits: 2, wait: 0 }, async (second) => {
            assert.notEqual(first.name, second.name);
            await assert.rejects(lock(redis, family, { permits: 2, wait: 0 }, () => {}), NotAcquired);
          });
        });
      });
      const [one, two] = [fresh(), fresh()];
      await lock(redis, [one, two], ({ fences }) =>
        lock(redis, two, ({ name, fence }) => assert.deepEqual([name, fence], [two, fences[1]])),
      );
      await assert.rejects(lock(redis, key, { timeout: 5 }, () => {}), /knows no option timeout/);
      await assert.rejects(lock(redis, key, 5, () => {}), /options as an object/);
      await assert.rejects(lock(redis, key, { signal: 1 }, () => {}), /signal should be an AbortSignal/);
      const nightly = once(redis, fresh(), { atLeast: 20_000 });
      assert.equal(await nightly(() => nightly(() => "inner")())(), undefined);
      await lock(redis, key, { shared: true }, () => assert.rejects(lock(redis, key, () => {}), LockgateError));
      assert.ok(await isFree(redis, key));
    });

    test("a task that outlives the block keeps the lock, and one that comes later takes it anew", async () => {
      const key = fresh();
      let goOn;
      const looked = new Promise((resolve) => (goOn = resolve));
      let started;
      let late;
      await lock(redis, key, async () => {
        started = lock(redis, key, async (grant) => {
          await looked;
          grant.check();
          return grant.token;
        });
        late = started.then(() => lock(redis, key, ({ token }) => token));
        await sleep(10);
      });
      assert.equal(await lockElsewhere(key, { wait: 0 }), "held");
      goOn();
      assert.notEqual(await late, await started);
    });

    test("two tasks exclude each other", async () => {
      const key = fresh();
      let inside = 0;
      const work = async () => {
        assert.equal(++inside, 1);
        await sleep(50);
        inside--;
      };
      await Promise.all([1, 2, 3].map(() => lock(redis, key, { wait: 60_000 }, work)));
    });

    test("tasks that name their locks at once do not wait for each other", async () => {
      const [one, two] = [fresh(), fresh()];
      const tasks = [[one, two], [two, one]].map((names) => lock(redis, names, () => sleep(50, "both")));
      assert.deepEqual(await Promise.all(tasks), ["both", "both"]);
    });

    test("a pool is as good as a client", async () => {
      const pool = redis.createPool?.({ maximum: 1 });
      if (!pool) return; // ioredis has none, nor has node-redis 4
      await pool.connect();
      const key = fresh();
      await lock(pool, key, async (grant) => {
        assert.equal(await grant.redis.ping(), "PONG");
        assert.equal(await lock(pool, key, ({ token }) => token), grant.token);
      });
      await pool.execute(() => lock(pool, key, () => {}));
      await pool.close();
    });

    test("who waits can be cancelled, and is granted nothing later", async () => {
      const patient = await client(library, (await patientProxy()).port);
      const inLine = async () => (await send(patient, "LOCKGATE", "WAITERS", key)).length;
      const key = fresh();
      const grant = await lock(redis, key);
      const controller = new AbortController();
      const waiting = lock(patient, key, { signal: controller.signal }, () => assert.fail());
      await eventually("it waits", async () => (await inLine()) === 1);
      const reason = new Error("enough");
      controller.abort(reason);
      await assert.rejects(waiting, (error) => error === reason);
      await eventually("it left", async () => (await inLine()) === 0);
      await grant.release();
      assert.ok(await isFree(redis, key));
      await assert.rejects(lock(redis, key, { signal: controller.signal }, () => assert.fail()), reason);
    });

    test("cancelled work gives the lock back, and its error is told", async () => {
      const key = fresh();
      const controller = new AbortController();
      const work = lock(redis, key, { signal: controller.signal }, async ({ signal }) => {
        setTimeout(() => controller.abort(), 50);
        await sleep(60_000, undefined, { signal });
      });
      await assert.rejects(work, { name: "AbortError" });
      assert.ok(await isFree(redis, key));
      const thrown = new Error("of the work");
      await assert.rejects(
        lock(redis, key, () => {
          throw thrown;
        }),
        (error) => error === thrown && error.cause === undefined,
      );
      assert.ok(await isFree(redis, key));
    });

    test("a blocked loop sees the end of the validity before anything else", async () => {
      const { out, err } = await program("block-and-look", library, fresh());
      const [seen, end] = out.trim().split("\n");
      assert.deepEqual(JSON.parse(seen), { before: true, aborted: true, thrown: "LockLost", left: 0, lost: true }, err);
      assert.equal(end, "LockLost");
    });

    test("work in one step that the proxy kept the lock for is no loss", async () => {
      const { out, err } = await program("block", library, fresh());
      assert.equal(out, "done\n", err);
    });

    test("a dropped grant is held until the process ends, with a warning", async () => {
      const key = fresh();
      let whileItLives;
      const onLine = () => (whileItLives ??= isFree(redis, key));
      const { status, err } = await program("drop", library, key, { words: ["--expose-gc"], onLine });
      assert.equal(status, 0, err);
      assert.match(err, /LockgateWarning: a grant of the lock '.*' was dropped without release\(\)/);
      assert.equal(await whileItLives, false);
      assert.ok(await lock(redis, key, { wait: 60_000 }, () => true));
    });

    test("a process that dies gives its lock back, though its child lives", async () => {
      const key = fresh();
      let child;
      const { port } = await lastingProxy();
      await program("fork", library, key, {
        port,
        onLine(said, parent) {
          child = Number(/child (\d+)/.exec(said)?.[1]);
          if (child) parent.kill("SIGKILL");
        },
      });
      assert.equal(process.kill(child, 0), true);
      const began = performance.now();
      await lock(redis, key, () => {});
      assert.ok(performance.now() - began < 30_000, "not by its time");
      process.kill(child, "SIGKILL");
    });

    test("a thread has locks of its own, which end with it", async () => {
      const key = fresh();
      const source = `
        const { parentPort, workerData: { key, library, port } } = require("node:worker_threads");
        const { lock } = require("lockgate");
        import("./deployment.mjs").then(async ({ open }) => {
          await lock(await open(library, port), key, () => {
            parentPort.postMessage("held");
            return new Promise(() => setTimeout(() => {}, 600_000));
          });
        });`;
      const workerData = { key, library, port: (await lastingProxy()).port };
      const worker = new Worker(source, { eval: true, workerData });
      await new Promise((resolve, reject) => worker.once("message", resolve).once("error", reject));
      assert.equal(await isFree(redis, key), false);
      await worker.terminate();
      const began = performance.now();
      await lock(redis, key, () => {});
      assert.ok(performance.now() - began < 30_000, "not by its time");
    });

    test("guarded writes: on the own connection, and in a pipeline behind LOCK.ATTACH", async () => {
      const key = fresh("account");
      const value = () => send(operator, "GET", key);
      await lock(redis, key, async (grant) => {
        await assert.rejects(send(redis, "SET", key, "0"), /NOTHELD/);
        assert.equal(await grant.execute("SET", key, "1"), "OK");
        await grant.redis.set(key, "2");
        assert.equal(await value(), "2");
        const pooled = await client(library);
        const pipeline = () => (pooled.pipeline ? pooled.pipeline() : pooled.multi());
        const run = (commands) => (pooled.pipeline ? commands.exec() : commands.execAsPipeline());
        await run(grant.attach(pipeline()).set(key, "3"));
        assert.equal(await value(), "3");
        const late = grant.attach(pipeline()).set(key, "late");
        const attached = await client(library);
        await grant.attach(attached);
        await send(attached, "SET", key, "4");
        await take(key);
        const answers = await run(late).catch(String);
        assert.match(String(answers), /NOTHELD|FENCED/);
        await assert.rejects(send(attached, "SET", key, "late"), /NOTHELD|FENCED/);
        assert.equal(await value(), "4");
        if (pooled.pipeline) return;
        const pool = pooled.createPool?.({ maximum: 2 });
        assert.throws(() => grant.attach(pool), TypeError);
      }).catch((error) => assert.ok(error instanceof LockLost, error));
    });

    test("permits", async () => {
      const family = fresh();
      const [one, two] = [await lock(redis, family, { permits: 2 }), await lock(redis, family, { permits: 2 })];
      assert.deepEqual([one.name, two.name].sort(), [`${family}#0`, `${family}#1`]);
      const third = lock(redis, family, { permits: 2, wait: 0 });
      await assert.rejects(third, (error) => !refused(error));
      await one.release();
      const again = await lock(redis, family, { permits: 2, wait: 60_000 });
      assert.equal(again.name, one.name);
      await renewed(again);
      await again.release();
      await two.release();
    });

    test("readers share a lock, and a writer has it alone", async () => {
      const key = fresh();
      const readers = [await lock(redis, key, { shared: true }), await lock(redis, key, { shared: true })];
      assert.equal(readers[0].fence, 0);
      assert.equal(await lockElsewhere(key, { wait: 0 }), "held");
      const writer = lock(redis, key, { wait: 60_000 }, ({ fence }) => fence);
      await Promise.all(readers.map(renewed));
      for (const reader of readers) await reader.release();
      assert.ok((await writer) > 0);
    });

    test("several locks are taken together, and lost together", async () => {
      const names = [fresh("account"), fresh()];
      await lock(redis, names, async (grant) => {
        assert.ok(grant.fences.length === 2 && grant.fence === grant.fences[0]);
        assert.equal(await lock(redis, names[1], ({ token }) => token), grant.token);
        for (const name of names) assert.equal(await lockElsewhere(name, { wait: 0 }), "held");
        await send(await attach(grant), "SET", names[0], "1");
        await renewed(grant);
      });
      for (const name of names) assert.ok(await isFree(redis, name));
      const work = async (grant) => {
        await take(names[0]);
        await aborted(grant);
        assert.equal(await lockElsewhere(names[1], { wait: 0 }), "held", "until the work has stopped");
      };
      await assert.rejects(lock(redis, names, work), LockLost);
      await eventually("it is free", () => isFree(redis, names[1]));
    });

    const attach = async (grant) => {
      const pooled = await client(library);
      await grant.attach(pooled);
      return pooled;
    };

    test("once: on one of many machines, and not again before its time", async () => {
      const key = fresh();
      const run = once(redis, key, { atLeast: 5_000 })(async ({ fence }, x) => (await sleep(100), x * 2 + (fence > 0)));
      const began = performance.now();
      const answers = await Promise.all([run(1), run(1), run(1)]);
      assert.deepEqual(answers.filter((answer) => answer !== undefined), [3]);
      assert.equal(await run(1), undefined);
      await eventually("it can run again", async () => (await run(2)) === 5);
      assert.ok(performance.now() - began >= 4_900);
    });

    test("once: work that is longer keeps the lock, over a connection that breaks too", async () => {
      const key = fresh();
      const run = once(redis, key, { atLeast: 6_000 })(async (grant) => {
        await sleep(3_000);
        grant.check();
        await send(operator, "CLIENT", "KILL", "ID", await grant.execute("CLIENT", "ID"));
        await sleep(4_000);
        grant.check();
        assert.equal(await lockElsewhere(key, { wait: 0 }), "held");
        return "done";
      });
      assert.equal(await run(), "done");
      assert.ok(await isFree(redis, key));
      const fails = once(redis, key, { atLeast: 30_000 })(() => Promise.reject("no"));
      await assert.rejects(fails(), (error) => error === "no");
      assert.equal(await isFree(redis, key), false, "its time is not over");
    });

    test("a grant without a block", async () => {
      const key = fresh();
      const grant = await lock(redis, key, { wait: 1_000 });
      assert.equal(await lockElsewhere(key, { wait: 0 }), "held");
      await Promise.all([grant.release(), grant.release()]);
      assert.throws(() => grant.check(), LockgateError);
      assert.equal(grant.remaining(), 0);
      assert.ok(await isFree(redis, key));
      if (Symbol.asyncDispose) {
        await (await lock(redis, key))[Symbol.asyncDispose]();
        assert.ok(await isFree(redis, key));
      }
    });

    /** Asks as another task would: why it was not granted, or "free". */
    async function lockElsewhere(key, options) {
      const other = elsewhere ??= await client(library, (await another()).port);
      return lock(other, key, options, () => "free").catch(({ reason }) => reason);
    }
    let elsewhere;
  });
}

/** A second proxy, which no test harms. */
let second;
const another = () => (second ??= deployment.startProxy());
/** One at which a LOCK may wait for longer than any test. */
let patience;
const patientProxy = () => (patience ??= deployment.startProxy({ max_wait: "10m" }));
/** One whose locks last for longer than a busy machine takes for anything. */
let lasting;
const lastingProxy = () => (lasting ??= deployment.startProxy({ default_ttl: "60s" }));
