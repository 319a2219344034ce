// ioredis doing real work through the proxy: node ioredis.js PORT.

const assert = require('node:assert');
const Redis = require('ioredis');

const port = Number(process.argv[2]);

async function main() {
  const client = new Redis({ port });
  const other = new Redis({ port });
  await client.flushall();

  // Plain commands, pipelines, transactions.
  assert.equal(await client.set('a', '1'), 'OK');
  const pipeline = client.pipeline();
  for (let number = 0; number < 2000; number++) pipeline.rpush('list', number);
  assert.equal((await pipeline.exec())[1999][1], 2000);
  assert.deepEqual(await client.multi().incr('a').get('a').exec(), [[null, 2], [null, '2']]);
  await client.watch('a');
  await other.set('a', '9');
  assert.equal(await client.multi().get('a').exec(), null);

  // Large values, scripts, blocking pops.
  const large = 'x'.repeat(5_000_000);
  await client.set('large', large);
  assert.equal(await client.get('large'), large);
  client.defineCommand('pair', { numberOfKeys: 1, lua: 'return {KEYS[1], ARGV[1]}' });
  assert.deepEqual(await client.pair('k', 'v'), ['k', 'v']);
  const popped = client.blpop('queue', 5);
  await other.rpush('queue', 'job');
  assert.deepEqual(await popped, ['queue', 'job']);

  // Publish and subscribe.
  const subscriber = new Redis({ port });
  await subscriber.subscribe('news');
  const message = new Promise((resolve) => subscriber.once('message', (_, text) => resolve(text)));
  await client.publish('news', 'hello');
  assert.equal(await message, 'hello');
  await subscriber.unsubscribe('news');

  // Lockgate's own commands.
  const [token, fence, validity] = await client.call('LOCK', 'job', 'PX', 10_000);
  assert.ok(fence > 0 && validity > 0 && validity < 10_000);
  assert.equal(await other.call('LOCK', 'job', 'PX', 10_000), null);
  assert.ok((await client.call('RENEW', 'job', token, 'EX', 20)) > 10_000);
  const mixed = await client
    .pipeline([['set', 'x', 1], ['call', 'UNLOCK', 'job', token], ['incr', 'x']])
    .exec();
  assert.deepEqual(mixed, [[null, 'OK'], [null, 1], [null, 2]]);
  await assert.rejects(client.call('LOCK', 'job', 'PX', 0), /invalid expire time in 'lock' command/);

  // Many locks at once over one connection.
  const grants = await Promise.all(
    Array.from({ length: 200 }, (_, n) => client.call('LOCK', `many:${n}`, 't', 'PX', 10_000)),
  );
  assert.equal(new Set(grants.map((grant) => grant[0])).size, 1);
  const released = await Promise.all(
    Array.from({ length: 200 }, (_, n) => client.call('UNLOCK', `many:${n}`, 't')),
  );
  assert.ok(released.every((answer) => answer === 1));

  console.log('ioredis', require('ioredis/package.json').version, 'ok');
  for (const connection of [client, other, subscriber]) connection.disconnect();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
