// Programs of the tests that need a process of their own.
//
//     node program.mjs WHAT PORT LIBRARY KEY [TIMES]

import { fork } from "node:child_process";
import { setTimeout as sleep } from "node:timers/promises";
import { lock } from "lockgate";
import { open, send } from "./deployment.mjs";

const [what, port, library, key, times] = process.argv.slice(2);
const client = what === "child" ? undefined : await open(library, port);

/** Blocks this process's loop. */
const block = (ms) => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);

const programs = {
  /** Adds to a number in two steps. */
  async add() {
    for (let n = 0; n < Number(times); n++) {
      await lock(client, key, async () => {
        const value = Number(await send(client, "GET", `value:${key}`));
        await sleep(1);
        await send(client, "SET", `value:${key}`, value + 1);
      });
    }
  },

  /** Looks at a lock whose validity passed while the loop was blocked, before any timer can fire. */
  async "block-and-look"() {
    const seen = await lock(client, key, async (grant) => {
      const before = grant.remaining();
      block(before + 500);
      const { aborted } = grant.signal;
      let thrown;
      try {
        grant.check();
      } catch (error) {
        thrown = error.name;
      }
      console.log(JSON.stringify({ before: before > 0, aborted, thrown, left: grant.remaining(), lost: grant.lost }));
    }).catch((error) => error.name);
    console.log(seen);
  },

  /** Works for longer than the validity in one step, while the proxy keeps the lock. */
  async "block"() {
    console.log(await lock(client, key, (grant) => (block(grant.remaining() + 500), "done")));
  },

  /** Drops a grant. The process ends by itself all the same. */
  async drop() {
    await lock(client, key);
    for (let n = 0; n < 50; n++) {
      await sleep(10);
      globalThis.gc();
    }
    console.log("dropped");
    await sleep(4_000);
  },

  /** Holds a lock until it is killed, with a child that lives on. */
  async fork() {
    await lock(client, key, async () => {
      const child = fork(process.argv[1], ["child"], { stdio: "ignore" });
      console.log(`child ${child.pid}`);
      await sleep(600_000);
    });
  },

  async child() {
    await sleep(600_000);
  },
};

await programs[what]();
if (client) await (client.close ?? client.quit).call(client);
