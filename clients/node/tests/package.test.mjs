// The package itself: both module systems, types.
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
