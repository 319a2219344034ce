// One worker at a time books payments; others wait in line, and one goes on when this one ends or fails.
//
//     node worker.mjs redis://127.0.0.1:6380
//
// The list payments:7 has amounts, and account:7 their sum. A guard of the proxy, keys "account:*" and lock
// "account:{1}", refuses every write to the account that is not the holder's. Needs ioredis and the package lockgate.

import Redis from "ioredis";
import { lock } from "lockgate";

const redis = new Redis(process.argv[2]);
try {
  await lock(redis, "account:7", { wait: 60_000 }, async (grant) => {
    // The grant's client is on the lock's own connection, so that the guard knows the holder.
    const { redis: own } = grant;
    for (;;) {
      const amount = await redis.lindex("payments:7", 0);
      if (amount === null) return;
      // In one transaction: a payment is booked and taken from the list, or neither.
      const replies = await own.multi().incrby("account:7", Number(amount)).lpop("payments:7").exec();
      for (const [error] of replies) if (error) throw error;
      // Throws LockLost, so that no work goes on without the lock.
      grant.check();
    }
  });
} catch (error) {
  console.error(`worker: ${error.message}`);
  process.exitCode = 1;
} finally {
  redis.disconnect();
}
