// The package itself: both module systems, types, days and months of time zones, exact values from the database.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { cpSync, mkdtempSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import * as esm from 'counterfoil';
import { clientOf, configure, daemon, database, mysqlSocket, namespace, require, unique } from './support.mjs';

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

test('the types fit both libraries and mysql2', () => {
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

test('exact values from the database are those of the daemon', async (t) => {
  const options = { socketPath: mysqlSocket, user: 'root', database };
  const pools = [require('mysql2/promise').createPool(options), require('mysql2').createPool({ ...options, supportBigNumbers: true })];
  t.after(() => pools.forEach((pool) => pool.end()));
  for (const [family, pool] of [['views', pools[0]], ['wide', pools[0]], ['views', pools[1]]]) {
    const redis = await clientOf(t, 'redis');
    const views = new Counterfoil(redis, namespace, { database: pool }).buffered(family);
    const daemons = new Counterfoil(redis, namespace, { daemon }).buffered(family);
    const id = unique('é/page');
    for (let sum = 0; sum < 100; sum += 1) {
      assert.equal(await views.value(id), sum);
      await views.add(id);
    }
    assert.equal(await daemons.value(id), 100);
    assert.equal(await views.value(unique('nothing')), 0);
    await views.add(id, 2n ** 53n);
    assert.deepEqual([await views.value(id), await daemons.value(id)], [2n ** 53n + 100n, 2n ** 53n + 100n]);
  }
  const visitors = new Counterfoil(await clientOf(t, 'ioredis'), namespace, { database: pools[0] }).visitors('daily');
  await visitors.firstVisit('scope', '2026-11-25', unique('visitor'));
  assert.ok((await visitors.value('scope', '2026-11-25')) >= 1);
  const table = { table: unique('item').replace('-', '_'), id: 'id', value: 'n' };
  await pools[0].query(`CREATE TABLE ${table.table} SELECT 'é/page' id, 7 n UNION SELECT 'é/2026-11-25', 8`);
  const own = new Counterfoil(await clientOf(t, 'ioredis'), namespace, { database: pools[0] });
  for (const family of [own.buffered('views', { table }), own.cached('votes', { table })]) assert.equal(await family.value('é/page'), 7);
  assert.equal(await own.visitors('daily', { table }).value('é', '2026-11-25'), 8);
  await pools[0].query(`DROP TABLE ${table.table}`);
  await configure('in_a_table', 1, '{"table":{"name":"item"}}'); // counterfoil's own has no row of it
  await assert.rejects(own.buffered('in_a_table').value('é/page'), { reason: 'NOTABLE' });
});

test('what the daemon replies while it or a proxy is busy is temporary', async (t) => {
  let [status, body] = [200, '{}'];
  const server = createServer((_, reply) => reply.writeHead(status).end(body));
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => server.close());
  const options = { daemon: `http://127.0.0.1:${server.address().port}`, retryFor: 10 };
  const views = new Counterfoil(await clientOf(t, 'ioredis'), namespace, options).buffered('views');
  for (status of [200, 429, 500, 502, 503, 504]) await assert.rejects(views.value('page'), { name: 'NotCounted', temporary: true }, `${status}`);
  for (status of [400, 401, 404]) await assert.rejects(views.value('page'), { name: 'Misconfigured', reason: `HTTP ${status}` });
  [status, body] = [200, '{"values":[{"id":"page","value":12']; // of 1234, as a proxy may pass it on
  await assert.rejects(views.value('page'), { name: 'NotCounted', temporary: true });
});

test('exact values need the option daemon or database, and a database that has the family', async (t) => {
  const redis = await clientOf(t, 'ioredis');
  await assert.rejects(new Counterfoil(redis, namespace).buffered('views').value('page'), { reason: 'NODAEMON' });
  const gone = new Counterfoil(redis, namespace, { daemon: 'http://127.0.0.1:9', retryFor: 100 });
  await assert.rejects(gone.buffered('views').value('page'), { name: 'NotCounted', reason: 'unreachable', temporary: true });
  const pool = require('mysql2/promise').createPool({ socketPath: mysqlSocket, user: 'root', database: 'mysql' });
  t.after(() => pool.end());
  await assert.rejects(new Counterfoil(redis, namespace, { database: pool }).buffered('views').value('page'), { reason: 'DATABASE' });
  const other = `${database}_node`;
  await pool.query(`CREATE DATABASE ${other}`);
  for (const name of ['families', 'values', 'ledger']) await pool.query(`CREATE TABLE ${other}.counterfoil_${name} LIKE ${database}.counterfoil_${name}`);
  await pool.query(`INSERT INTO ${other}.counterfoil_families SELECT * FROM ${database}.counterfoil_families`);
  await pool.query(`UPDATE ${other}.counterfoil_families SET database_id = 'other'`);
  const others = require('mysql2/promise').createPool({ socketPath: mysqlSocket, user: 'root', database: other });
  t.after(() => others.end());
  const views = new Counterfoil(redis, namespace, { database: others }).buffered('views');
  await assert.rejects(views.value('page'), { name: 'Misconfigured', reason: 'MISMATCH' });
  assert.equal(await views.add(unique('page')), 1);
});
