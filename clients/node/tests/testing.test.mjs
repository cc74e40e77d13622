// The module for tests of an application. The scenarios that need no faults are played with it, too.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import * as real from 'counterfoil';
import { Counterfoil } from 'counterfoil/testing';
import { require } from './support.mjs';

test('it is a client without servers, with the same errors', async () => {
  const failed = [];
  const families = { products: { ids: '[1-9]\\d*' }, votes: { min: 0, max: 10 }, hits: { windows: ['60s', 'day', 'month'] } };
  const counterfoil = new Counterfoil('shop', { families, onError: (...args) => failed.push(args) });
  assert.ok(counterfoil instanceof real.Counterfoil);
  assert.equal(require('counterfoil/testing').Counterfoil, Counterfoil);
  const [products, votes] = [counterfoil.buffered('products'), counterfoil.cached('votes')];
  assert.deepEqual(await products.addMany([['7', 2], ['7', 3]]), [2, 5]);
  await assert.rejects(products.add('x'), { name: 'NotCounted', reason: 'BADID' });
  const epoch = await products.requestEpoch('job', '7');
  assert.deepEqual([await products.addOnce('job', '7', 4, epoch), await products.addOnce('job', '7', 4, epoch)], [true, false]);
  assert.deepEqual(await products.values(['7', '8']), [9, 0]);
  await assert.rejects(products.value('x', 1), { name: 'Misconfigured', reason: 'HTTP 400' });
  assert.equal(await votes.incr('a', 7), 7);
  await assert.rejects(votes.incrOnce('order', 'a', 7), (error) => error.reason === 'RANGE' && error.value === 7);
  assert.equal(await votes.set('a', 1), 1);
  await assert.rejects(votes.incrOnce('order', 'a', 7), { reason: 'RANGE' });
  await assert.rejects(counterfoil.cached('products').get('7'), { name: 'Misconfigured', reason: 'MISMATCH', message: /products is buffered, not cached/ });
  const hits = counterfoil.series('hits');
  await hits.add('site', 2);
  await hits.add('site', 3, Date.now() - 120_000);
  for (const label of ['60s', 'day', 'month']) {
    const slices = await hits.get('site', label);
    assert.equal(slices.reduce((sum, { count }) => sum + count, 0), 5);
  }
  counterfoil.activity('readers').later('front', 'ann');
  counterfoil.visitors('daily').later('shop', '2026-11-25', 'ann');
  await counterfoil.flush();
  assert.deepEqual(await counterfoil.activity('readers').now('front'), { views: 1, visitors: 1 });
  assert.equal(await counterfoil.visitors('daily').value('shop', '2026-11-25'), 1);
  assert.equal(await products.value(7), 9);
  await counterfoil.close();
  await assert.rejects(products.add(7), { name: 'NotCounted', reason: 'CLOSED' });
  await assert.rejects(products.value(7), { name: 'NotCounted', reason: 'CLOSED' });
  assert.throws(() => products.later(7), { reason: 'CLOSED' });
  assert.deepEqual(failed, []);
});
