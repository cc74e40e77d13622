// Views of pages, without servers of Redis and without frameworks: their samples run these with them.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { Misconfigured, NotCounted } from 'counterfoil';
import { Views as ExpressViews } from 'counterfoil/express';
import { Views as FastifyViews } from 'counterfoil/fastify';
import { Views } from 'counterfoil/next';
import { Views as WebViews } from 'counterfoil/web';
import { Counterfoil } from 'counterfoil/testing';
import { require } from './support.mjs';

const BROWSER = 'Mozilla/5.0 (X11; Linux x86_64; rv:143.0) Gecko/20100101 Firefox/143.0';
const CRAWLER = 'Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)';
const request = (headers = {}, method = 'GET') => new Request('http://shop/', { method, headers: { 'User-Agent': BROWSER, ...headers } });

test('crawlers, prefetches and staff are left out', async () => {
  const counterfoil = new Counterfoil('shop');
  const requests = [{}, { 'User-Agent': CRAWLER }, { 'User-Agent': '' }, { 'Sec-Purpose': 'prefetch;prerender' }, { Purpose: 'prefetch' }, { Role: 'staff' }].map((headers) => request(headers));
  const counted = async (options) => {
    const views = new Views(counterfoil, 'views', options);
    return (await Promise.all(requests.map((each) => views.countView(each, 1)))).map(Number).join('');
  };
  const isStaff = async ({ headers }) => headers.get('Role') === 'staff';
  assert.equal(await counted(), '100001');
  assert.equal(await counted({ staff: isStaff }), '100000');
  assert.equal(await counted({ bots: true, staff: true }), '111001');
  assert.equal(await counted({ bots: ({ headers }) => headers.get('User-Agent') === '', staff: isStaff }), '110000');
  assert.equal(await counterfoil.buffered('views').value(1), 2 + 1 + 4 + 2);
});

test('without repeats a visitor counts once a day', async () => {
  const counterfoil = new Counterfoil('shop');
  const seen = [];
  const recording = { hold: (view) => view, visitors: (name) => ({ firstVisit: (...visit) => (seen.push(visit), counterfoil.visitors(name).firstVisit(...visit)) }) };
  const views = new Views(recording, 'visitors', { repeats: false, secret: 'key', address: ({ headers }) => headers.get('X-Real-IP') });
  const visits = [['10.0.0.1'], ['10.0.0.1'], ['10.0.0.2'], ['10.0.0.1', `${BROWSER} Other`]];
  const counted = [];
  for (const [address, agent = BROWSER] of visits) counted.push(await views.countView(request({ 'X-Real-IP': address, 'User-Agent': agent }), 7));
  assert.deepEqual(counted, [true, false, true, true]);
  const [[id, day, visitor]] = seen;
  assert.deepEqual([id, day, visitor.length], [7, new Date().toISOString().slice(0, 10), 16]);
  await assert.rejects(views.countView(request(), 7), NotCounted); // without an address all would be one visitor
  assert.throws(() => new Views(counterfoil, 'visitors', { repeats: false, secret: 'key' }), Misconfigured);
  assert.throws(() => new ExpressViews(counterfoil, 'visitors', { repeats: false }), Misconfigured);
  const named = new Views(counterfoil, 'named', { repeats: false, visitor: ({ headers }) => headers.get('Cookie') });
  const twice = [await named.countView(request({ Cookie: 'a' }), 7), await named.countView(request({ Cookie: 'a' }), 7)];
  assert.deepEqual(twice, [true, false]);
});

test('an error is thrown, or logged in a line', async (t) => {
  const lines = [];
  const failing = { hold: (view) => view, buffered: () => ({ add: () => Promise.reject(new NotCounted('OOM', 'no\nmemory')) }) };
  const views = new Views(failing, 'views', { log: (line) => lines.push(line) });
  await assert.rejects(views.countView(request(), 1), NotCounted);
  assert.equal(await views.tryCountView(request(), 1), false);
  const page = await views.counted(() => new Response('page'), () => { throw new Error('no id'); })(request());
  assert.equal(await page.text(), 'page');
  const printed = t.mock.method(console, 'error', () => {});
  await new Views(failing, 'views').tryCountView(request(), 1);
  assert.deepEqual(printed.mock.calls.map((call) => call.arguments), [lines.slice(0, 1)]);
  assert.deepEqual(lines, ['a view of 1 in views was not counted: OOM: no memory', 'a view of undefined in views was not counted: no id']);
});

test('a client is made for the first view, and again if that failed', async () => {
  let made = 0;
  const counterfoil = new Counterfoil('shop');
  const views = new Views(async () => {
    made += 1;
    if (made === 1) throw new Misconfigured('ADDRESS', 'none');
    return counterfoil;
  }, 'views');
  assert.equal(made, 0);
  await assert.rejects(views.countView(request(), 1), Misconfigured);
  await Promise.all([1, 2, 3].map((id) => views.countView(request(), id)));
  assert.equal(made, 2);
});

test('close waits for views that are about to count', async () => {
  const counterfoil = new Counterfoil('shop');
  const views = new Views(counterfoil, 'views', { staff: () => sleep(50, false) });
  const counted = views.tryCountView(request(), 1);
  await sleep(1);
  await counterfoil.close();
  assert.equal(await counted, true);
});

test('a handler is counted before its response is returned', async () => {
  const counterfoil = new Counterfoil('shop');
  const views = new WebViews(counterfoil, 'views');
  const handler = views.counted((_, { status }) => new Response(null, { status }));
  for (const [status, method] of [[200], [304], [404], [500], [200, 'HEAD']]) {
    const response = await handler(request({}, method), { params: Promise.resolve({ id: 'a' }), status });
    assert.equal(response.status, status);
  }
  assert.equal(await counterfoil.buffered('views').value('a'), 2);
});

/** Serves responses with the status that is the request's path, by middleware as Express calls it. */
async function serve(t, middleware) {
  const server = createServer((request, response) => {
    Object.defineProperty(request, 'ip', { get: () => request.socket.remoteAddress });
    request.params = { id: 'a' };
    middleware(request, response, () => setTimeout(() => response.writeHead(Number(request.url.slice(1))).end(), 2));
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => (server.closeAllConnections(), server.close()));
  return `http://127.0.0.1:${server.address().port}`;
}

test('middleware counts after the response was sent', async (t) => {
  const counterfoil = new Counterfoil('shop');
  const views = new ExpressViews(counterfoil, 'views');
  const url = await serve(t, views.counted());
  for (const [path, method] of [['200'], ['302'], ['404'], ['500'], ['200', 'HEAD']]) {
    await fetch(`${url}/${path}`, { method, redirect: 'manual', headers: { 'User-Agent': BROWSER } });
  }
  await sleep(20);
  assert.equal(await counterfoil.buffered('views').value('a'), 2);
});

test('options of a route in Fastify', async () => {
  const counterfoil = new Counterfoil('shop');
  const lines = [];
  const request = { ip: '10.0.0.1', method: 'GET', headers: { 'user-agent': BROWSER }, params: { id: 'a' }, log: { error: (line) => lines.push(line) } };
  const { onResponse } = new FastifyViews(counterfoil, 'views').counted();
  for (const [statusCode, destroyed] of [[200, false], [404, false], [200, true]]) await onResponse(request, { statusCode, raw: { destroyed } });
  assert.equal(await counterfoil.buffered('views').value('a'), 1);
  await onResponse({ ...request, params: {} }, { statusCode: 200, raw: {} });
  assert.equal(lines.length, 1);
});

test('a process without isbot ends at start, and says why', async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'application-'));
  t.after(() => rmSync(folder, { recursive: true }));
  mkdirSync(join(folder, 'node_modules'));
  symlinkSync(dirname(require.resolve('counterfoil/package.json')), join(folder, 'node_modules/counterfoil'));
  const start = (options) => promisify(execFile)(process.execPath, ['--preserve-symlinks', '--preserve-symlinks-main', '-e',
    `const { Views } = require('counterfoil/express'); new Views({}, 'views', ${options}); setTimeout(() => console.log('runs'), 200);`], { cwd: folder });
  await assert.rejects(start('{}'), ({ stderr }) => stderr.includes('LIBRARY: install isbot, or write bots: true if crawlers count'));
  assert.equal((await start('{ bots: true }')).stdout, 'runs\n');
});
