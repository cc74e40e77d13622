// Exact values by the daemon, and by daemons that are busy, silent or gone.
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import net from 'node:net';
import { test } from 'node:test';
import { Redis } from 'ioredis';
import { Counterfoil, NotCounted } from 'counterfoil';
import { clientOf, daemon, namespace, patient, unique } from './support.mjs';

const NOBODY = 'http://127.0.0.1:9';

/** Returns the family `views` over daemons. */
const viewsBy = async (t, options = {}) => new Counterfoil(await clientOf(t, 'ioredis'), namespace, { ...patient, ...options }).buffered('views');

/** Starts a daemon that replies 7 for each id, or what `reply` returns. */
async function stub(t, reply = (ids) => ({ body: JSON.stringify({ family: 'f', values: ids.map(() => 7) }) })) {
  const started = { requests: [], connections: 0 };
  const server = createServer(async (request, response) => {
    const parts = [];
    for await (const part of request) parts.push(part);
    const list = JSON.parse(Buffer.concat(parts).toString());
    started.requests.push([request.headers.authorization, list]);
    const { status = 200, headers = {}, body = '' } = reply(list.ids);
    response.writeHead(status, headers).end(body);
  });
  server.on('connection', () => (started.connections += 1));
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => (server.closeAllConnections(), server.close()));
  started.url = `http://127.0.0.1:${server.address().port}`;
  return started;
}

test('what waits in Redis is a part of exact values', async (t) => {
  const counterfoil = new Counterfoil(await clientOf(t, 'redis'), namespace, { ...patient, daemon: [NOBODY, `${daemon}/`] });
  const ids = Array.from({ length: 2100 }, (_, i) => unique(`é/page ${i}`));
  for (const family of ['views', 'wide']) {
    const views = counterfoil.buffered(family);
    await views.addMany(ids.map((id, i) => [id, i]));
    const inReverse = Array.from(ids.keys()).reverse();
    assert.deepEqual(await views.values(inReverse.map((i) => ids[i])), inReverse);
    await views.add(ids[0], 2n ** 53n);
    assert.deepEqual([await views.value(ids[0]), await views.value(unique('none')), await views.values([])], [2n ** 53n, 0, []]);
  }
  const visitors = counterfoil.visitors('daily');
  const scope = unique('scope');
  await visitors.firstVisit(scope, '2026-11-25', unique('visitor'));
  assert.deepEqual(await visitors.values([[scope, '2026-11-26'], [scope, '2026-11-25']]), [0, 1]);
  assert.equal(await visitors.value(scope, '2026-11-25'), 1);
});

test('connections to a daemon are kept', async (t) => {
  const started = await stub(t);
  const views = await viewsBy(t, { daemon: started.url, token: 'secret' });
  for (let i = 0; i < 20; i += 1) assert.equal(await views.value('a'), 7);
  assert.equal(started.requests.length, 20);
  assert.ok(started.connections <= 2, `${started.connections}`); // fetch may open a second one before the first is free again
  assert.deepEqual(started.requests[0], ['Bearer secret', { family: `${namespace}/views`, ids: ['a'] }]);
});

test('the next daemon is asked if one is unreachable or busy', async (t) => {
  const busy = await stub(t, () => ({ status: 503, headers: { 'Retry-After': '1' } }));
  const started = await stub(t);
  const views = await viewsBy(t, { daemon: [NOBODY, busy.url, started.url] });
  for (let i = 0; i < 10; i += 1) assert.equal(await views.value('a'), 7);
  assert.deepEqual([busy.requests.length, started.requests.length], [1, 10]);
  const busyOnes = await viewsBy(t, { daemon: [busy.url, NOBODY], retryFor: 500 });
  await assert.rejects(busyOnes.value('a'), { name: 'NotCounted', reason: 'UNREACHABLE', temporary: true });
});

test('a silent daemon leaves time for the next one', async (t) => {
  const silent = net.createServer(() => {});
  await new Promise((resolve) => silent.listen(0, '127.0.0.1', resolve));
  t.after(() => silent.close());
  const views = await viewsBy(t, { daemon: [`http://127.0.0.1:${silent.address().port}`, (await stub(t)).url], retryFor: 2000 });
  const begun = performance.now();
  assert.deepEqual([await views.value('a'), await views.value('a')], [7, 7]);
  assert.ok(performance.now() - begun < 1800);
});

test('a busy daemon is left alone for as long as it asks', async (t) => {
  const busy = await stub(t, () => ({ status: 503, headers: { 'Retry-After': '1' } }));
  await assert.rejects((await viewsBy(t, { daemon: busy.url, retryFor: 4000 })).value('a'), { reason: 'UNREACHABLE' });
  assert.ok([2, 3, 4].includes(busy.requests.length), `${busy.requests.length}`);
});

test('what the daemon replies while it or a proxy is busy is temporary, and other refusals are not', async (t) => {
  let [status, body] = [200, '{}'];
  const started = await stub(t, () => ({ status, body, headers: { Location: NOBODY } }));
  const other = await stub(t);
  const views = await viewsBy(t, { daemon: started.url, retryFor: 200 });
  for (status of [200, 429, 500, 502, 503, 504]) await assert.rejects(views.value('a'), { name: 'NotCounted', temporary: true }, `${status}`);
  const both = await viewsBy(t, { daemon: [started.url, other.url] });
  for (status of [302, 400, 401, 404, 409]) await assert.rejects(both.value('a'), { name: 'Misconfigured', reason: `HTTP ${status}` });
  assert.equal(other.requests.length, 0);
  [status, body] = [200, '{"values":[12']; // a part of 1234, as a proxy may pass it on
  await assert.rejects(views.value('a'), { name: 'NotCounted', temporary: true });
});

test('a fallback stands for values that do not arrive in time, and for no other failure', async (t) => {
  const counterfoil = new Counterfoil(await clientOf(t, 'ioredis'), namespace, { daemon: NOBODY });
  const [views, visitors] = [counterfoil.buffered('views'), counterfoil.visitors('daily')];
  const errors = [];
  assert.equal(await views.value('a', 7), 7);
  assert.equal(await views.value('a', async (error) => errors.push(error) && 8), 8);
  assert.deepEqual(await views.values(['a', 'b'], 0), [0, 0]);
  assert.deepEqual(await views.values(['a', 'b'], [1, 2]), [1, 2]);
  assert.deepEqual(await counterfoil.cached('votes').values(['a', 'b'], (error) => errors.push(error) && [3, 4]), [3, 4]);
  assert.equal(await visitors.value('shop', '2026-11-25', 9), 9);
  assert.ok(errors.every((error) => error instanceof NotCounted && error.temporary));
  assert.equal(await (await viewsBy(t, { daemon })).value(unique('page'), 7), 0);
  const none = new Counterfoil(await clientOf(t, 'ioredis'), namespace, { ...patient, daemon }).buffered('none');
  assert.deepEqual(await none.values(['a', 'b'], (error) => errors.push(error) && [3, 4]), [3, 4]);
  await assert.rejects(none.value('a'), { name: 'NotCounted', reason: 'UNCONFIGURED', temporary: true, message: /own\/none: declare it in counterfoil.toml/ });
  const elsewhere = await viewsBy(t, { daemon: (await stub(t, () => ({ status: 404, body: '{"error":"nothing at this path"}' }))).url });
  await assert.rejects(elsewhere.value('a', 7), { name: 'Misconfigured', reason: 'HTTP 404' });
  await assert.rejects(views.value('', 7), { reason: 'BADID' });
  const away = new Redis('/nowhere.sock').on('error', () => {});
  t.after(() => away.disconnect());
  assert.equal(await new Counterfoil(away, namespace, { daemon: NOBODY }).visitors('daily').value('shop', '2026-11-25', 7), 7, 'its separator is unknown');
});

test('without a daemon there is no value', async (t) => {
  await assert.rejects((await viewsBy(t, {})).value('a'), { name: 'Misconfigured', reason: 'NODAEMON' });
  await assert.rejects(viewsBy(t, { daemon: 'localhost:9292' }), { name: 'Misconfigured', reason: 'OPTIONS' });
  await assert.rejects((await viewsBy(t, { daemon: NOBODY, retryFor: 500 })).value('a'), { name: 'NotCounted', reason: 'UNREACHABLE', temporary: true });
});
