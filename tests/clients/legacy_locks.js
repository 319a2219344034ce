// node-redlock 5 as it is, on one Redis.
//
//     node legacy_locks.js PORT
'use strict';

const { Redis } = require('ioredis');
const { default: Redlock } = require('redlock');

async function main() {
  const client = new Redis({ port: Number(process.argv[2]), connectionName: 'node-redlock' });
  const redlock = new Redlock([client], { retryCount: 0 });
  let lock = await redlock.acquire(['lock:node'], 10_000);
  let refused = false;
  await redlock.acquire(['lock:node'], 10_000).catch(() => { refused = true; });
  if (!refused) throw new Error('granted twice');
  lock = await lock.extend(10_000);
  await lock.release();
  await client.quit();
  console.log('ok');
}

main().catch((error) => { console.error(error); process.exit(1); });
