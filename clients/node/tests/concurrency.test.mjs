// Group commit, callers, later() and its end, worker threads and child processes.
import assert from 'node:assert/strict';
import { execFile, execFileSync } from 'node:child_process';
import { test } from 'node:test';
import { promisify } from 'node:util';
import v8 from 'node:v8';
import { runInNewContext } from 'node:vm';
import { Worker } from 'node:worker_threads';
import { Counterfoil, NotCounted } from 'counterfoil';
import { LIBRARIES, SCRIPTS, clientOf, command, commandsOf, configure, daemon, first, namespace, patient, proxyOf, socket, unique } from './support.mjs';

for (const library of LIBRARIES) {
  test(`${library}: concurrent calls share round trips, and each has its own result`, async (t) => {
    const redis = await clientOf(t, library);
    const [views, page] = [new Counterfoil(redis, namespace, patient).buffered('views'), unique('page')];
    await views.add(page);
    const commands = commandsOf(redis);
    const results = await Promise.all(Array.from({ length: 64 }, (_, i) => views.add(i === 7 ? '' : `${page}-${i % 4}`, i).catch((error) => error)));
    assert.equal(commands.calls, 2);
    assert.ok(results[7] instanceof NotCounted);
    for (const [i, result] of results.entries()) {
      const sum = Array.from({ length: i + 1 }, (_, k) => (k % 4 === i % 4 && k !== 7 ? k : 0)).reduce((a, b) => a + b);
      if (i !== 7) assert.equal(result, sum, `the order of calls, ${i}`);
    }
  });

  test(`${library}: more than 1000 pairs, and visits and slices`, async (t) => {
    const counterfoil = new Counterfoil(await clientOf(t, library), namespace, patient);
    const page = unique('page');
    const pairs = Array.from({ length: 2500 }, (_, i) => [`${page}-${i}`, i + 1]);
    assert.deepEqual(await counterfoil.buffered('views').addMany(pairs), pairs.map(([, delta]) => delta));
    const visits = Array.from({ length: 50 }, (_, i) => counterfoil.visitors('daily').firstVisit(page, '2026-11-25', `visitor-${i % 30}`));
    assert.equal((await Promise.all(visits)).filter(Boolean).length, 30);
    await Promise.all(Array.from({ length: 250 }, () => counterfoil.series('hits').add(page)));
    for (const [label, size] of [['60s', 120], ['day', 31]]) {
      const slices = await counterfoil.series('hits').get(page, label);
      assert.equal(slices.length, size);
      assert.equal(slices.reduce((sum, { count }) => sum + count, 0), 250);
    }
  });
}

test('few names of callers stay in Redis', async (t) => {
  const redis = await clientOf(t, 'ioredis');
  const before = await redis.hkeys(`cf1:{${namespace}/views/0}:calls`);
  const views = new Counterfoil(redis, namespace, patient).buffered('views');
  for (let i = 0; i < 200; i += 1) await Promise.all([views.add('page'), views.add('page')]);
  const names = (await redis.hkeys(`cf1:{${namespace}/views/0}:calls`)).filter((name) => !before.includes(name));
  assert.ok(names.length <= 2, `${names}`);
});

test('what waited while the number of partitions changed is not counted', async (t) => {
  const redis = await clientOf(t, 'ioredis');
  const own = await Counterfoil.connect(socket, namespace, patient);
  for (const counterfoil of [new Counterfoil(redis, namespace, patient), own]) {
    await configure('moved', 8);
    const [views, page] = [counterfoil.buffered('moved'), unique('page')];
    await views.requestEpoch('request', page);
    await configure('moved', 4);
    const results = await views.addMany(Array.from({ length: 3500 }, (_, i) => [`${page}-${i}`, 1]));
    for (let i = 4; i < 8; i += 1) assert.equal(await redis.hlen(`cf1:{${namespace}/moved/${i}}:buffer`), 0);
    assert.ok(results.every((result) => result instanceof Error));
    assert.equal(results.at(-1).reason, 'MISMATCH');
    assert.equal(await views.add(page), 1);
    await redis.unlink(await redis.keys(`cf1:{${namespace}/moved/*`));
  }
  await own.close();
});

test('calls that wait behind others end in time while Redis is unreachable', async (t) => {
  const proxy = await proxyOf(t);
  const counterfoil = await Counterfoil.connect(proxy.path, namespace, { ...patient, retryFor: 2000 });
  t.after(() => counterfoil.close());
  const [views, page] = [counterfoil.buffered('views'), unique('page')];
  await views.add(page);
  proxy.isAway = true;
  for (const connection of proxy.connections) connection.destroy();
  // until the client has noticed, calls are written to the closed connection, and have an unknown outcome
  await new Promise((resolve) => setTimeout(resolve, 300));
  const begun = performance.now();
  const results = await views.addMany(Array.from({ length: 20_000 }, (_, i) => [`${page}-${i}`, 1]));
  // one after the other, the 20 calls would take 40 s
  assert.ok(performance.now() - begun < 20_000);
  const notSent = results.filter((error) => error instanceof NotCounted && error.temporary);
  assert.ok(notSent.length >= 18_000 && results.every((error) => error instanceof Error), `${notSent.length}`);
});

test('activity: views and visitors', async (t) => {
  const counterfoil = new Counterfoil(await clientOf(t, 'redis'), namespace, patient);
  const page = unique('page');
  const activity = counterfoil.activity('readers');
  await Promise.all(Array.from({ length: 60 }, (_, i) => activity.touch(page, i % 2 ? `visitor-${i % 20}` : Buffer.from([255, i % 20]))));
  assert.deepEqual(await activity.now(page), { views: 60, visitors: 20 });
});

test('cached: callers that miss share one read of the row; bounds; readRow that fails', async (t) => {
  let reads = 0;
  const redis = await clientOf(t, 'ioredis');
  const votes = new Counterfoil(redis, namespace, patient).cached('votes', { readRow: async () => (reads += 1) && 0 });
  const id = unique('vote');
  const values = await Promise.all(Array.from({ length: 20 }, () => votes.incr(id)));
  assert.deepEqual(values.sort((a, b) => a - b), Array.from({ length: 20 }, (_, i) => i + 1));
  assert.equal(reads, 1);
  await assert.rejects(votes.set(id, 2000), (error) => error.reason === 'RANGE' && error.value === 20);
  assert.equal(await votes.get(id), 20);
  const broken = new Counterfoil(redis, namespace, patient).cached('votes', { readRow: () => { throw new Error('no table'); } });
  await assert.rejects(broken.get(unique('vote')), (error) => error instanceof NotCounted && error.cause.message === 'no table');
  for (const row of [undefined, 1.5, 2n ** 63n]) {
    const wrong = new Counterfoil(redis, namespace, patient).cached('votes', { readRow: () => row });
    await assert.rejects(wrong.get(unique('vote')), (error) => error instanceof NotCounted, `${row}`);
  }
  const counterfoil = new Counterfoil(redis, namespace, patient);
  counterfoil.cached('votes'); // a later call without the option leaves it as it is
  const text = counterfoil.cached('votes', { readRow: () => '7' }); // as mysql2 may return a BIGINT
  assert.equal(await text.get(unique('vote')), 7);
});

test('addOnce counts once, in any process, and not after its epoch', async (t) => {
  const counterfoil = new Counterfoil(await clientOf(t, 'ioredis'), namespace, patient);
  for (const family of ['views', 'wide']) {
    const [views, job, id] = [counterfoil.buffered(family), unique('job'), unique('page')];
    const epoch = await views.requestEpoch(job, id);
    const again = new Counterfoil(await clientOf(t, 'redis'), namespace, patient).buffered(family);
    const outcomes = await Promise.all([views.addOnce(job, id, 3, epoch), again.addOnce(job, id, 3, epoch), views.addOnce(job, id, 3)]);
    assert.deepEqual(outcomes.filter(Boolean).length, 1);
    await assert.rejects(views.addOnce(job, id, 3, 'an older epoch'), { name: 'OutcomeUnknown', reason: 'EXPIRED' });
  }
});

test('incrOnce returns the same value in any process', async (t) => {
  const votes = new Counterfoil(await clientOf(t, 'ioredis'), namespace, patient).cached('votes', { readRow: () => 5 });
  const [job, id] = [unique('job'), unique('item')];
  const epoch = await votes.requestEpoch(job, id);
  assert.equal(await votes.incrOnce(job, id, 2, epoch), 7);
  assert.equal(await votes.incr(id), 8);
  const again = new Counterfoil(await clientOf(t, 'redis'), namespace, patient).cached('votes', { readRow: () => 5 });
  assert.deepEqual(await Promise.all([again.incrOnce(job, id, 2), votes.incrOnce(job, id, 2, epoch)]), [7, 7]);
});

test('a request that Redis may have forgotten is not counted, and the next one is', async (t) => {
  const views = new Counterfoil(await clientOf(t, 'ioredis'), namespace, patient).buffered('views');
  assert.equal(await views.addOnce(unique('job'), unique('page')), true);
  await command('HDEL', `cf1:{${namespace}/views/0}:requests`, '=now', '=before', '=began_at'); // as a reset leaves it
  const [job, id] = [unique('job'), unique('page')];
  await assert.rejects(views.addOnce(job, id), { name: 'OutcomeUnknown', reason: 'EXPIRED' });
  assert.equal(await views.addOnce(job, id), true);
});

test('requestEpoch asks Redis afresh', async (t) => {
  const views = new Counterfoil(await clientOf(t, 'ioredis'), namespace, patient).buffered('views');
  const epoch = await views.requestEpoch('job', 'page');
  await command('HSET', `cf1:{${namespace}/views/0}:requests`, '=began_at', 0); // as if an hour had passed
  assert.notEqual(await views.requestEpoch('job', 'page'), epoch);
});

test('later: series, activity and visitors', async (t) => {
  const redis = await clientOf(t, 'ioredis');
  const failed = [];
  const counterfoil = new Counterfoil(redis, namespace, { ...patient, onError: (...args) => failed.push(args), laterEvery: 60_000, daemon });
  const [hits, readers, daily] = [counterfoil.series('hits'), counterfoil.activity('readers'), counterfoil.visitors('daily')];
  const [name, page, shop] = ['name', 'page', 'shop'].map(unique);
  await Promise.all([hits.get(name, 'day'), readers.now(page), daily.values([])]);
  const commands = commandsOf(redis);
  const before = Date.now() - 90_000;
  for (let i = 0; i < 600; i += 1) {
    hits.later(name, 2);
    hits.later(name, 1, before);
    readers.later(page, i % 2 ? `visitor-${i % 20}` : Buffer.from(`visitor-${i % 20}`));
    daily.later(shop, '2026-11-25', `visitor-${i % 30}`);
  }
  await Promise.all([hits.flush(), readers.flush(), daily.flush()]);
  assert.ok(commands.calls < 20, `${commands.calls}`);
  const slices = await hits.get(name, '60s');
  assert.equal(slices.reduce((sum, { count }) => sum + count, 0), 1800);
  assert.ok(slices.some(({ start, count }) => count === 600 && start * 1000 <= before));
  assert.deepEqual(await readers.now(page), { views: 600, visitors: 20 });
  assert.equal(await daily.value(shop, '2026-11-25'), 30);
  for (const refused of [() => hits.later(''), () => hits.later(name, 0), () => hits.later(name, 1, 'now'), () => readers.later(page, ''), () => daily.later(shop, '2026-2-3', 'visitor')]) {
    assert.throws(refused, (error) => error instanceof NotCounted && /^BAD/.test(error.reason));
  }
  hits.later(name, 3, 1);
  await assert.rejects(hits.flush(), { reason: 'BADTIME' });
  assert.deepEqual(failed.map(([family, id, n, { reason }]) => [family, id, n, reason]), [[`${namespace}/hits`, name, 3, 'BADTIME']]);
});

test('later: one call for many hits; a failure is reported once', async (t) => {
  const failed = [];
  const redis = await clientOf(t, 'ioredis');
  const views = new Counterfoil(redis, namespace, { ...patient, daemon, onError: (...args) => failed.push(args) }).buffered('views');
  const [page, full, most] = [unique('page'), unique('page'), 2n ** 63n - 1n];
  await views.addMany({ [page]: 0, [full]: 1 });
  const commands = commandsOf(redis);
  for (let i = 0; i < 10_000; i += 1) views.later(page);
  views.later(full, most);
  await assert.rejects(views.flush(), (error) => error.reason === 'RANGE' && /1 sums/.test(error.message));
  await views.flush();
  assert.equal(commands.calls, 1);
  assert.equal(await views.value(page), 10_000);
  assert.deepEqual(failed.map(([family, id, delta, error]) => [family, id, delta, error.reason]), [[`${namespace}/views`, full, most, 'RANGE']]);
  assert.throws(() => views.later(''), { reason: 'BADID' });
});

test('later: sums beyond 2^53 are exact', async (t) => {
  const redis = await clientOf(t, 'ioredis');
  const views = new Counterfoil(redis, namespace, { ...patient, daemon }).buffered('views');
  const page = unique('page');
  for (const delta of [2n ** 53n + 1n, -(2n ** 53n)]) views.later(page, delta);
  await views.flush();
  assert.equal(await views.value(page), 1);
});

test('later: a sum beyond 64 bits is refused, and what was accepted before stays', async (t) => {
  const [proxy, failed] = [await proxyOf(t), []];
  const redis = await clientOf(t, 'ioredis', proxy.path);
  const options = { retryFor: 1_000, laterEvery: 60_000, onError: (_, id, delta, { reason }) => failed.push([id, delta, reason]) };
  const views = new Counterfoil(redis, namespace, { ...patient, ...options }).buffered('views');
  const reader = new Counterfoil(redis, namespace, { ...patient, daemon }).buffered('views');
  const [page, least] = [unique('page'), -(2n ** 63n)];
  views.later(page, least);
  assert.throws(() => views.later(page, -1), (error) => error instanceof NotCounted && error.reason === 'RANGE');
  views.later(page, 1);
  await views.flush();
  assert.equal(await reader.value(page), least + 1n);
  proxy.isAway = true;
  for (const connection of proxy.connections) connection.destroy();
  while (redis.status === 'ready') await new Promise(setImmediate);
  views.later(page, 2n ** 63n - 1n);
  const flush = views.flush();
  await new Promise(setImmediate); // until it is being sent
  views.later(page, 7);
  await assert.rejects(flush, (error) => error instanceof NotCounted && !error.temporary && /were not counted/.test(error.message));
  await new Promise(setImmediate);
  assert.deepEqual(failed, [[page, 2n ** 63n - 1n, 'UNREACHABLE']]);
  proxy.isAway = false;
  while (await views.flush().then(() => false, () => true));
  assert.equal(await reader.value(page), least + 8n);
});

test('later: errors that nothing asks for are not kept, but the first and their number', async (t) => {
  v8.setFlagsFromString('--expose-gc');
  const errors = [];
  const options = { onError: (_family, _id, _delta, error) => errors.push(new WeakRef(error)) };
  const views = new Counterfoil(await clientOf(t, 'ioredis'), namespace, { ...patient, ...options }).buffered('small');
  for (let i = 0; i < 5000; i += 1) views.later(unique('page'));
  while (errors.length < 4998) await new Promise((resolve) => setTimeout(resolve, 10));
  runInNewContext('gc')();
  assert.ok(errors.filter((error) => error.deref()).length < 1000);
  await assert.rejects(views.flush(), (error) => error.reason === 'FULL' && error.message.includes(`${errors.length} sums`));
  await views.flush();
});

test('later: onError has received all errors when flush or close ends', async (t) => {
  const failed = [];
  const counterfoil = new Counterfoil(await clientOf(t, 'ioredis'), namespace, { ...patient, onError: (_family, id) => failed.push(id) });
  const votes = counterfoil.buffered('votes'); // a family of kind cached
  for (const [id, end] of [['flush', votes], ['close', counterfoil]]) {
    votes.later(id);
    await assert.rejects(end[id](), { reason: 'MISMATCH' });
    assert.equal(failed.pop(), id);
  }
});

test('flush of the client sends what later() took in all families, and throws the first error', async (t) => {
  const counterfoil = new Counterfoil(await clientOf(t, 'ioredis'), namespace, { ...patient, daemon, laterEvery: 60_000, onError: () => {} });
  const [views, wide, page] = [counterfoil.buffered('views'), counterfoil.buffered('wide'), unique('page')];
  for (const family of [views, wide]) family.later(page);
  await counterfoil.flush();
  assert.deepEqual([await views.value(page), await wide.value(page)], [1, 1]);
  counterfoil.buffered('votes').later(page); // a family of kind cached
  views.later(page);
  await assert.rejects(counterfoil.flush(), { name: 'Misconfigured', reason: 'MISMATCH' });
  assert.equal(await views.value(page), 2);
});

test('close tries again while Redis is unreachable, and returns at once without sums', async (t) => {
  const proxy = await proxyOf(t);
  const [idle, counterfoil] = [await Counterfoil.connect(proxy.path, namespace), await Counterfoil.connect(proxy.path, namespace)];
  const [views, page] = [counterfoil.buffered('views'), unique('page')];
  for (const client of [idle, counterfoil]) await client.buffered('views').add(page);
  proxy.isAway = true;
  for (const connection of proxy.connections) connection.destroy();
  for (const client of [idle, counterfoil]) await assert.rejects(client.buffered('views').add(page));
  views.later(page, 5);
  const closed = counterfoil.close();
  await idle.close();
  await new Promise((resolve) => setTimeout(resolve, 700)); // while others fail
  proxy.isAway = false;
  await closed;
  const reader = new Counterfoil(await clientOf(t, 'ioredis'), namespace, { ...patient, daemon }).buffered('views');
  assert.equal(await reader.value(page), 7);
});

test('close says what it drops, and whether its outcome is known', async (t) => {
  for (const isSent of [false, true]) {
    const [proxy, failed] = [await proxyOf(t), []];
    const onError = (_family, id, n, error) => failed.push([id, n, error.name]);
    const counterfoil = await Counterfoil.connect(proxy.path, namespace, { laterEvery: 60_000, onError });
    const views = counterfoil.buffered('views');
    await views.add('page');
    Object.assign(proxy, { isAway: !isSent, fate: () => 'silence' });
    if (!isSent) {
      for (const connection of proxy.connections) connection.destroy();
      await assert.rejects(views.add('page')); // an outage begins
    }
    for (let i = 0; i < 3; i += 1) views.later('page');
    const [name, message] = isSent ? ['OutcomeUnknown', /1 sums have an unknown outcome/] : ['NotCounted', /1 sums were not counted/];
    await assert.rejects(counterfoil.close(), { name, message });
    assert.deepEqual(failed, [['page', 3, name]]);
  }
});

test('later: what a full Redis refuses is sent again, with pauses', async (t) => {
  const redis = await clientOf(t, 'ioredis');
  const views = new Counterfoil(redis, namespace, { ...patient, daemon }).buffered('views');
  const page = unique('page');
  await views.add(page);
  const full = t.mock.method(redis, 'call', async () => {
    throw new Error('MISCONF Redis is configured to save RDB snapshots, but it is unable to');
  });
  views.later(page, 5);
  await new Promise((resolve) => setTimeout(resolve, 1500));
  await assert.rejects(views.flush(), { name: 'NotCounted', reason: 'MISCONF', temporary: true });
  assert.ok(full.mock.callCount() > 1 && full.mock.callCount() < 5, `${full.mock.callCount()} calls`);
  full.mock.restore();
  await views.flush();
  assert.equal(await views.value(page), 6);
});

test('later: a server that does not reply is waited for once, not for each 1000 ids', async (t) => {
  const [proxy, failed] = [await proxyOf(t), []];
  const options = { library: 'redis', timeout: 200, retryFor: 500, laterEvery: 60_000, onError: (_family, _id, _delta, error) => failed.push(error) };
  const counterfoil = await Counterfoil.connect(proxy.path, namespace, { ...patient, ...options });
  const views = counterfoil.buffered('views');
  await views.add('page');
  proxy.fate = first(Infinity, 'silence');
  for (let i = 0; i < 20_000; i += 1) views.later(`page-${i}`);
  await assert.rejects(counterfoil.close(), { name: 'OutcomeUnknown' });
  assert.deepEqual([failed.length, failed.filter((error) => error instanceof NotCounted).length], [20_000, 19_000]);
});

test('later: bounded, and exact through lost replies', async (t) => {
  const proxy = await proxyOf(t);
  const views = new Counterfoil(await clientOf(t, 'ioredis', proxy.path), namespace, { ...patient, daemon }).buffered('views');
  const page = unique('page');
  for (let i = 0; i < 100_000; i += 1) views.later(`${page}-${i}`);
  assert.throws(() => views.later(page), (error) => error.reason === 'BUSY' && error.temporary);
  views.later(`${page}-0`);
  proxy.fate = first(3, 'cut');
  await views.flush();
  assert.equal(await views.value(`${page}-0`), 2);
});

const PROGRAM = `
  const { Counterfoil } = require('counterfoil');
  (async () => {
    const counterfoil = await Counterfoil.connect(${JSON.stringify(socket)}, ${JSON.stringify(namespace)}, ${JSON.stringify(patient)});
    const views = counterfoil.buffered('views');
    for (let i = 0; i < 50; i += 1) { await views.add(process.env.PAGE); views.later(process.env.PAGE); }
    await counterfoil.close();
  })();`;

test('worker threads and child processes have their own callers', async (t) => {
  const page = unique('page');
  const options = { env: { ...process.env, PAGE: page }, cwd: import.meta.dirname };
  const workers = Array.from({ length: 3 }, () => new Promise((resolve, reject) => {
    const worker = new Worker(`${PROGRAM.replace("require('counterfoil')", `require(${JSON.stringify(packageFile())})`)}`, { eval: true, env: options.env });
    worker.on('exit', resolve).on('error', reject);
  }));
  const children = Array.from({ length: 3 }, () => promisify(execFile)(process.execPath, ['-e', PROGRAM], options));
  await Promise.all([...workers, ...children]);
  const views = new Counterfoil(await clientOf(t, 'ioredis'), namespace, { ...patient, daemon }).buffered('views');
  assert.equal(await views.value(page), 600);
});

test('a process that ends by itself has sent what later() took', async (t) => {
  const page = unique('page');
  const program = `
    const { Redis } = require('ioredis');
    const { Counterfoil } = require('counterfoil');
    const redis = new Redis(${JSON.stringify(socket)});
    const counterfoil = new Counterfoil(redis, ${JSON.stringify(namespace)});
    counterfoil.buffered('views').later('${page}', 7);
    process.on('SIGTERM', async () => { await counterfoil.close(); redis.disconnect(); });
    process.kill(process.pid, 'SIGTERM');`;
  execFileSync(process.execPath, ['-e', program], { cwd: import.meta.dirname });
  const views = new Counterfoil(await clientOf(t, 'ioredis'), namespace, { ...patient, daemon }).buffered('views');
  assert.equal(await views.value(page), 7);
});

test('a process ends after close() has failed, and onError receives what was left', () => {
  const program = `
    const { Redis } = require('ioredis');
    const { Counterfoil } = require('counterfoil');
    const redis = new Redis('/nowhere.sock').on('error', () => {});
    const onError = (family, id, delta, { reason }) => console.log(id, delta, reason);
    const counterfoil = new Counterfoil(redis, 'shop', { retryFor: 100, onError });
    for (const family of ['views', 'sales']) counterfoil.buffered(family).later(family, 7);
    counterfoil.close().catch(({ reason }) => console.log(reason)).finally(() => {
      redis.disconnect();
      try { counterfoil.buffered('views').later('late'); } catch ({ reason }) { console.log(reason); }
    });`;
  const printed = execFileSync(process.execPath, ['-e', program], { cwd: import.meta.dirname, timeout: 10_000 });
  const lines = printed.toString().trim().split('\n');
  assert.deepEqual(lines.sort(), ['CLOSED', 'UNREACHABLE', 'sales 7 UNREACHABLE', 'views 7 UNREACHABLE']);
});

test('a process that is stopped for a while goes on with a valid epoch', async () => {
  const page = unique('page');
  const child = execFile(process.execPath, ['-e', PROGRAM], { env: { ...process.env, PAGE: page }, cwd: import.meta.dirname });
  const exited = new Promise((resolve) => child.on('exit', resolve));
  await new Promise((resolve) => setTimeout(resolve, 150));
  child.kill('SIGSTOP');
  // as after a pause of minutes: Redis no longer knows its epoch
  for (let i = 0; i < 3; i += 1) {
    await command('HSET', `cf1:{${namespace}/views/0}:calls`, '=began_at', 0);
    const keys = ['calls', 'calls_before', 'requests', 'requests_before'].map((name) => `cf1:{${namespace}/views/0}:${name}`);
    await command('EVAL', SCRIPTS.family_epoch, 4, ...keys, '', '', '', '');
  }
  child.kill('SIGCONT');
  assert.equal(await exited, 0);
});

function packageFile() {
  return new URL(import.meta.resolve('counterfoil')).pathname.replace('index.mjs', 'dist/index.js');
}
