// The package itself: both module systems, types, days and months of time zones.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { cpSync, mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import * as esm from 'counterfoil';
import { clientOf, namespace, require } from './support.mjs';

const { Counterfoil } = esm;

test('ESM and CommonJS have the same classes', () => {
  const { ...names } = esm;
  assert.deepEqual({ ...require('counterfoil') }, names);
});

test('without its scripts, as a bundler leaves it, an error says why', async (t) => {
  const copy = join(mkdtempSync(join(tmpdir(), 'bundle-')), 'dist');
  cpSync(dirname(require.resolve('counterfoil')), copy, { recursive: true });
  const views = new (require(copy).Counterfoil)(await clientOf(t, 'ioredis'), namespace).buffered('views');
  const is = { name: 'Misconfigured', reason: 'SCRIPTS', message: /bundler/ };
  await assert.rejects(views.add('page'), is);
  views.later('page');
  await assert.rejects(views.flush(), is);
});

test('the types fit both libraries', () => {
  execFileSync(process.execPath, [require.resolve('typescript').replace(/lib\/[^/]*$/, 'bin/tsc'), '-p', import.meta.dirname], { stdio: 'inherit' });
});

test('slices of days and months are those of Rust', () => {
  const { slice, starts } = require(new URL(import.meta.resolve('counterfoil')).pathname.replace('index.mjs', 'dist/calendar.js'));
  const noon = (date) => Date.parse(`${date}T12:00:00Z`) / 1000;
  const hours = (zone, date) => {
    const { start, end, name } = slice('day', zone, noon(date));
    assert.equal(name, date);
    return (end - start) / 3600;
  };
  assert.deepEqual(['2014-03-29', '2014-03-30', '2014-10-26', '2014-10-27'].map((date) => hours('Europe/Berlin', date)), [24, 23, 25, 24]);
  assert.equal(hours('Asia/Beirut', '2014-03-30'), 23, 'a day without midnight begins at one');
  assert.equal(hours(undefined, '2014-03-30'), 24);
  const { start, end, name } = slice('month', 'Europe/Berlin', noon('2014-03-15'));
  assert.deepEqual([(end - start) / 3600, name], [31 * 24 - 1, '2014-03-01']);
  assert.deepEqual(slice('60s', 'Europe/Berlin', 125), { start: 120, end: 180, name: '*' });
  assert.deepEqual(starts('31536000s', undefined, 3, 31536000), [-31536000, 0, 31536000], 'a window begins before 1970');
  const days = starts('day', 'America/Sao_Paulo', 400, noon('2018-12-01'));
  assert.ok(days.every((day, i) => i === 0 || [23, 24, 25].includes((day - days[i - 1]) / 3600)));
  assert.throws(() => slice('day', 'Mars/Olympus', 0), { name: 'Misconfigured', reason: 'TIMEZONE' });
});
