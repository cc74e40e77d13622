// Views with Express itself, and counters in memory.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Views } from 'counterfoil/express';
import { Counterfoil } from 'counterfoil/testing';
import express from 'express';

const BROWSER = 'Mozilla/5.0 (X11; Linux x86_64; rv:143.0) Gecko/20100101 Firefox/143.0';
const today = new Date().toISOString().slice(0, 10);

for (const [proxies, visitors] of [[0, 1], [1, 2]]) {
  test(`a visitor's address by trust proxy: ${proxies}`, async (t) => {
    const counterfoil = new Counterfoil('shop');
    const views = new Views(counterfoil, 'product_visitors', { repeats: false, secret: 'key' });
    const pages = express.Router();
    pages.get('/:id', views.counted(), (_, response) => response.send('page'));
    const app = express().set('trust proxy', proxies).use('/products', pages);
    const server = app.listen(0, '127.0.0.1');
    t.after(() => server.close());
    await once(server, 'listening');
    for (const address of ['10.0.0.1', '10.0.0.2', '10.0.0.1']) {
      const headers = { 'User-Agent': BROWSER, 'X-Forwarded-For': `1.1.1.1, ${address}` };
      assert.equal((await fetch(`http://127.0.0.1:${server.address().port}/products/7`, { headers })).status, 200);
    }
    await sleep(50);
    assert.equal(await counterfoil.visitors('product_visitors').value(7, today), visitors);
  });
}
