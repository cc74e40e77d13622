// The function in one file and an empty folder, in a process that is stopped between its calls. Needs the servers and `dev prepare`.
import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';

const { COUNTERFOIL_REDIS } = process.env;
const BROWSER = 'Mozilla/5.0 (X11; Linux x86_64; rv:143.0) Gecko/20100101 Firefox/143.0';

test('the scripts are in the bundle', () => {
  const bundle = readFileSync('function/handler.mjs', 'utf8');
  const { SCRIPTS } = createRequire(import.meta.url)('./node_modules/counterfoil/dist/scripts.js');
  for (const name of Object.keys(SCRIPTS)) assert.ok(bundle.includes(`${name}:`), name);
});

test('a process that is frozen between calls loses no view', { skip: !COUNTERFOIL_REDIS }, async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'function-'));
  for (const name of ['function', 'runtime.mjs']) cpSync(name, join(folder, name), { recursive: true });
  const frozen = fork(join(folder, 'runtime.mjs'), { cwd: folder });
  const redis = new Redis(COUNTERFOIL_REDIS);
  t.after(() => {
    redis.disconnect();
    frozen.kill('SIGKILL');
    rmSync(folder, { recursive: true });
  });
  const reply = async () => {
    const [message] = await once(frozen, 'message');
    frozen.kill('SIGSTOP');
    return message;
  };
  const call = async (method, path) => {
    const next = reply();
    frozen.kill('SIGCONT');
    frozen.send({ method, url: `http://shop${path}`, headers: { 'User-Agent': BROWSER } });
    const { status, body } = await next;
    assert.equal(status, 200, body);
    return JSON.parse(body);
  };
  const viewsOf = async () => (await call('GET', '/products')).find(({ id }) => id === 3).views;
  await reply();
  const before = await viewsOf();
  const calls = [];
  for (const ms of [0, 50, 500, 3000, 100]) {
    calls.push(await call('POST', '/products/3/views'));
    await sleep(ms);
  }
  await redis.client('KILL', 'TYPE', 'normal', 'SKIPME', 'yes'); // while it is frozen
  await sleep(100);
  calls.push(await call('POST', '/products/3/views'));
  assert.deepEqual(calls, Array(6).fill({ counted: true }));
  assert.equal(await viewsOf(), before + 6);
});
