// Measures this client beside the plain HINCRBY of its library, in short rounds by turns: bench.mjs SOCKET NAMESPACE ioredis|node-redis
import { createRequire } from 'node:module';
import { Counterfoil } from 'counterfoil';
import { createHash } from 'node:crypto';
import { dirname, join } from 'node:path';

const require = createRequire(import.meta.url);
const [socket, namespace, library] = process.argv.slice(2);
const [ROUNDS, ROUND_MS, CALLERS, IDS] = [5, 300, 64, 1000];
const isOfIoredis = library === 'ioredis';
const redis = isOfIoredis ? new (require('ioredis').Redis)(socket) : require('redis').createClient({ socket: { path: socket } });
if (!isOfIoredis) await redis.connect();
const send = (...args) => (isOfIoredis ? redis.call(args[0], args.slice(1)) : redis.sendCommand(args));

const views = new Counterfoil(redis, namespace).buffered('views');
const plain = `bench:${namespace}:hits`;
const family = `cf1:{${namespace}/views/0}`;
const { SCRIPTS } = require(join(dirname(require.resolve('counterfoil')), 'scripts.js'));
const sha1 = createHash('sha1').update(SCRIPTS.buffered_add).digest('hex');
const keys = ['calls', 'calls_before', 'buffer', 'meta'].map((name) => `${family}:${name}`);
await send('SCRIPT', 'LOAD', SCRIPTS.buffered_add);
const [, epoch] = await send('EVAL', SCRIPTS.family_epoch, '4', ...['calls', 'calls_before', 'requests', 'requests_before'].map((name) => `${family}:${name}`), '', '', '', '');
await views.add('page');

let next = 0;
const id = () => `page-${(next += 1) % IDS}`;
const hincrby = () => send('HINCRBY', plain, id(), '1');
const evalsha = () => send('EVALSHA', sha1, '4', ...keys, '', '1', epoch, '', '0', '1', '1', id(), '1');
const add = () => views.add(id());

async function cpu() {
  const info = await send('INFO', 'cpu');
  const [user, system] = ['user', 'sys'].map((name) => Number(new RegExp(`used_cpu_${name}:([\\d.]+)`).exec(info)[1]));
  return (user + system) * 1e6;
}

/** Makes calls one after the other, and notes the latency of each in microseconds. */
async function alone(call, latencies) {
  for (const end = performance.now() + ROUND_MS; performance.now() < end; ) {
    const begin = performance.now();
    await call();
    latencies.push((performance.now() - begin) * 1000);
  }
}

/** Lets many callers make calls, and adds up the calls, the time, and the CPU time of Redis. */
async function together(call, total) {
  const [begin, cpuBefore] = [performance.now(), await cpu()];
  await Promise.all(Array.from({ length: CALLERS }, async () => {
    for (; performance.now() < begin + ROUND_MS; total.calls += 1) await call();
  }));
  total.ms += performance.now() - begin;
  total.cpu += (await cpu()) - cpuBefore;
}

async function sums(total) {
  const [begin, cpuBefore] = [performance.now(), await cpu()];
  while (performance.now() < begin + ROUND_MS) {
    for (let i = 0; i < 1000; i += 1) views.later(id());
    total.calls += 1000;
    await new Promise((resolve) => setImmediate(resolve));
  }
  await views.flush();
  total.ms += performance.now() - begin;
  total.cpu += (await cpu()) - cpuBefore;
}

const latencies = { hincrby: [], evalsha: [], add: [] };
const totals = Object.fromEntries(['hincrby_64', 'add_64', 'later'].map((name) => [name, { calls: 0, ms: 0, cpu: 0 }]));
for (let round = 0; round < ROUNDS; round += 1) {
  await alone(hincrby, latencies.hincrby);
  await alone(evalsha, latencies.evalsha);
  await alone(add, latencies.add);
  await together(hincrby, totals.hincrby_64);
  await together(add, totals.add_64);
  await sums(totals.later);
}

const median = (values) => Math.round(values.sort((a, b) => a - b)[values.length >> 1] * 10) / 10;
const perSecond = ({ calls, ms }) => Math.round((calls / ms) * 1000);
const perHit = ([name, { calls, cpu: used }]) => [name, Math.round((used / calls) * 100) / 100];
console.log(JSON.stringify({
  hincrby_p50_us: median(latencies.hincrby),
  evalsha_p50_us: median(latencies.evalsha),
  add_p50_us: median(latencies.add),
  hincrby_64_per_s: perSecond(totals.hincrby_64),
  add_64_per_s: perSecond(totals.add_64),
  hincrby_per_s: Math.round((latencies.hincrby.length / (ROUNDS * ROUND_MS)) * 1000),
  later_per_s: perSecond(totals.later),
  cpu_us_per_hit: Object.fromEntries(Object.entries(totals).map(perHit)),
}));
await send('DEL', plain);
if (isOfIoredis) redis.disconnect();
else redis.destroy();
