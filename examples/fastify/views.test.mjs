// Views with Fastify itself, and counters in memory.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Views } from 'counterfoil/fastify';
import { Counterfoil } from 'counterfoil/testing';
import fastify from 'fastify';

const BROWSER = 'Mozilla/5.0 (X11; Linux x86_64; rv:143.0) Gecko/20100101 Firefox/143.0';
const today = new Date().toISOString().slice(0, 10);

function appOf(t, views, options = {}) {
  const lines = [];
  const app = fastify({ logger: { level: 'error', stream: { write: (line) => lines.push(line) } }, ...options });
  app.get('/products/:id', views.counted(), async () => 'page');
  t.after(() => app.close());
  return { app, lines };
}

for (const [trustProxy, visitors] of [[false, 1], [true, 2]]) {
  test(`a visitor's address by trustProxy: ${trustProxy}`, async (t) => {
    const counterfoil = new Counterfoil('shop');
    const { app } = appOf(t, new Views(counterfoil, 'product_visitors', { repeats: false, secret: 'key' }), { trustProxy });
    for (const address of ['10.0.0.1', '10.0.0.2', '10.0.0.1']) {
      const headers = { 'User-Agent': BROWSER, 'X-Forwarded-For': address };
      assert.equal((await app.inject({ url: '/products/7', headers })).statusCode, 200);
    }
    await app.inject({ method: 'HEAD', url: '/products/7', headers: { 'User-Agent': 'another' } });
    await sleep(50);
    assert.equal(await counterfoil.visitors('product_visitors').value(7, today), visitors);
  });
}

test('an error is in the log', async (t) => {
  const counterfoil = new Counterfoil('shop', { families: { product_views: { ids: '\\d+' } } });
  const { app, lines } = appOf(t, new Views(counterfoil, 'product_views'));
  for (const id of [7, 'seven']) await app.inject({ url: `/products/${id}`, headers: { 'User-Agent': BROWSER } });
  await sleep(50);
  assert.equal(await counterfoil.buffered('product_views').value(7), 1);
  assert.match(lines.join(), /^[^\n]*"msg":"a view of seven in product_views was not counted: BADID[^\n]*\n$/);
});
