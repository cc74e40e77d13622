// The cost of an outage: pages of an application while Redis or the daemon refuses connections, is silent, or is behind a firewall that
// drops packets.
// Prints a table of milliseconds, and asserts the promises with room for a busy machine.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import net from 'node:net';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { Counterfoil, NotCounted, OutcomeUnknown } from 'counterfoil';
import { configure, namespace } from './support.mjs';

const FAULTS = ['refused', 'silent', 'dropped'];
const rows = [['', 'p50', 'worst']];
after(() => {
  for (const [row, ...times] of rows) console.log(row.padEnd(72), ...times.map((ms) => String(ms).padStart(8)));
});

/** A daemon that is busy. */
const DAEMON = `
  const busy = (socket) => socket.end('HTTP/1.1 503 \\r\\n\\r\\n');
  require('node:net').createServer(busy).listen(+process.argv[1], '127.0.0.1', 1);`;

/** A server in a process of its own: Redis with the families of this file, or a daemon. */
async function serverOf(t, kind) {
  const free = net.createServer().listen(0, '127.0.0.1');
  await once(free, 'listening');
  const { port } = free.address();
  free.close();
  const redis = process.env.COUNTERFOIL_REDIS_SERVER ?? 'redis-server';
  const [program, ...args] = kind === 'redis'
    ? [redis, '--port', port, '--save', '', '--appendonly', 'no', '--tcp-backlog', '1']
    : [process.execPath, '-e', DAEMON, port];
  const child = spawn(program, args.map(String), { stdio: 'ignore' });
  const sockets = [];
  t.after(() => {
    child.kill('SIGKILL');
    for (const socket of sockets) socket.destroy();
  });
  const dial = () => {
    const socket = net.connect(port, '127.0.0.1').on('error', () => {});
    sockets.push(socket);
    return Promise.race([once(socket, 'connect').then(() => true, () => false), sleep(100, false)]);
  };
  while (!(await dial())) await sleep(20);
  if (kind === 'redis') await configureAll(port);
  const disturb = async (fault) => {
    child.kill(fault === 'refused' ? 'SIGKILL' : 'SIGSTOP');
    if (fault === 'refused') await once(child, 'exit');
    if (fault === 'dropped') while (await dial()); // its queue of connections is full: nothing arrives any more
  };
  return { port, disturb, resume: () => child.kill('SIGCONT') };
}

async function configureAll(port) {
  const redis = new Redis(port);
  const send = (...args) => redis.call(...args);
  await configure('views', 2, {}, send);
  await configure('daily', 2, { kind: 'visitors', settings: { remember: 86_400_000 } }, send);
  await configure('readers', 1, { kind: 'activity', stripes: 1, settings: { stripes: 1, layer: 10_000, layers: 30 } }, send);
  redis.disconnect();
}

/** Opens pages one after the other in some workers, and returns the milliseconds of each in order. */
async function measure(row, page, { pages = 30, workers = 1 } = {}) {
  const times = [];
  await Promise.all(Array.from({ length: workers }, async () => {
    for (let i = 0; i < pages; i += 1) {
      const begun = performance.now();
      await page(i);
      times.push(performance.now() - begun);
    }
  }));
  times.sort((a, b) => a - b);
  const [p50, worst] = [times[times.length >> 1], times.at(-1)].map((ms) => Math.round(ms * 10) / 10);
  rows.push([row, p50, worst]);
  return { p50, worst };
}

const orError = (promise) => promise.catch((error) => error);

for (const fault of FAULTS) {
  for (const library of ['ioredis', 'redis']) {
    test(`Redis ${fault}: ${library}`, async (t) => {
      const redis = await serverOf(t, 'redis');
      const counterfoil = await Counterfoil.connect(`redis://127.0.0.1:${redis.port}`, namespace, { library, onError: () => {} });
      const [views, visitors, readers] = [counterfoil.buffered('views'), counterfoil.visitors('daily'), counterfoil.activity('readers')];
      const page = async (i) => [
        await orError(views.add(`page/${i}`)),
        await orError(visitors.firstVisit('shop', '2026-11-25', `visitor-${i}`)),
        await orError(readers.touch('front', `visitor-${i}`)),
      ];
      assert.deepEqual(await page('first'), [1, true, undefined]);
      await redis.disturb(fault);

      const later = await measure(`Redis ${fault}: later only (${library})`, async (i) => views.later(`page/${i}`));
      assert.ok(later.worst < 200, `${later.worst}`);
      const errors = new Set();
      const counted = await measure(`Redis ${fault}: add, firstVisit, touch, 3 requests at a time (${library})`, async (i) => {
        for (const error of await page(i)) errors.add(error);
      }, { workers: 3 });
      assert.ok(counted.p50 < 10 && counted.worst < 2000, `${counted.p50} ${counted.worst}`);
      assert.ok([...errors].every((error) => error instanceof NotCounted || error instanceof OutcomeUnknown));
      assert.match([...errors].at(-1).message, /Redis (is unreachable|has been unreachable for [1-9]\d* s): ./);
      const read = await measure(`Redis ${fault}: ten reads of activity (${library})`, () => Promise.all(Array.from({ length: 10 }, () => orError(readers.now('front')))));
      assert.ok(read.worst < 200, `${read.worst}`);

      if (fault === 'silent') {
        redis.resume();
        const resumed = performance.now();
        while ((await orError(views.add('resumed'))) instanceof Error) await sleep(10);
        assert.ok(performance.now() - resumed < 4000);
      }
      const begun = performance.now();
      await counterfoil.close().catch(() => {});
      assert.ok(performance.now() - begun < 6000); // sums wait
    });
  }

  test(`the daemon ${fault}`, async (t) => {
    const server = await serverOf(t, 'daemon');
    const counterfoil = new Counterfoil({ status: 'end', options: {}, call() {} }, namespace, { daemon: `http://127.0.0.1:${server.port}` });
    const views = counterfoil.buffered('views');
    await server.disturb(fault);
    const fallbacks = [];
    const times = await measure(`the daemon ${fault}: ten values with a fallback`, async (i) => {
      for (let k = 0; k < 10; k += 1) assert.equal(await views.value('page', (error) => fallbacks.push(error) && 7), 7, `page ${i}`);
    }, { pages: 10 });
    assert.ok(times.p50 < 50 && times.worst < 1000, `${times.p50} ${times.worst}`);
    assert.equal(fallbacks.length, 100);
    assert.match(fallbacks.at(-1).message, /the daemon (is|has been) unreachable/);
  });
}

const APPLICATION = `
  const { createServer } = require('node:http');
  const { Counterfoil } = require('counterfoil');
  (async () => {
    const onError = (family, id, number) => console.log(id, number);
    const counterfoil = await Counterfoil.connect(process.argv[1], process.argv[2], { onError, retryFor: +process.argv[3] });
    const views = counterfoil.buffered('views');
    await views.add('page');
    const server = createServer((_, response) => response.end()).listen(0, '127.0.0.1');
    process.on('SIGTERM', () => server.close(() => counterfoil.close().catch(() => {}).finally(() => process.exit())));
    process.stdin.on('data', () => { views.later('lost', 7); console.log('noted'); });
    console.log('ready');
  })();`;

async function stop(t, fault, isKnown, retryFor) {
  const redis = await serverOf(t, 'redis');
  const args = ['-e', APPLICATION, `redis://127.0.0.1:${redis.port}`, namespace, String(retryFor)];
  const child = spawn(process.execPath, args, { cwd: import.meta.dirname, stdio: ['pipe', 'pipe', 'ignore'] });
  const lines = [];
  const printed = child.stdout.setEncoding('utf8').on('data', (text) => lines.push(...text.trim().split('\n')));
  while (!lines.includes('ready')) await once(printed, 'data');
  await redis.disturb(fault);
  child.stdin.write('x');
  while (!lines.includes('noted')) await once(printed, 'data');
  if (isKnown) await sleep(1500);
  const begun = performance.now();
  child.kill('SIGTERM');
  await once(child, 'exit');
  const ms = Math.round(performance.now() - begun);
  rows.push([`Redis ${fault}: SIGTERM to the end, ${isKnown ? 'in a known outage' : `retryFor ${retryFor}`}`, ms, ms]);
  assert.ok(ms < 6000, `${ms}`);
  assert.ok(lines.includes('lost 7'), `${lines}`);
}

test('SIGTERM', async (t) => {
  const ways = [[true, 1000], [false, 1000], [false, 30_000]];
  await Promise.all(FAULTS.flatMap((fault) => ways.map((way) => stop(t, fault, ...way))));
});
