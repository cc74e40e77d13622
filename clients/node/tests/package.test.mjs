// The package itself: both module systems, types.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import * as esm from 'counterfoil';
import { require } from './support.mjs';

test('ESM and CommonJS have the same classes', () => {
  const { ...names } = esm;
  assert.deepEqual({ ...require('counterfoil') }, names);
});

test('the programs of the README are JavaScript', () => {
  const programs = [...readFileSync('README.md', 'utf8').matchAll(/^```js\n([^]*?)^```$/gm)];
  assert.ok(programs.length > 3);
  for (const [, program] of programs) execFileSync(process.execPath, ['--check', '--input-type=module'], { input: program });
});

test('the types fit both libraries', () => {
  execFileSync(process.execPath, [require.resolve('typescript').replace(/lib\/[^/]*$/, 'bin/tsc'), '-p', import.meta.dirname], { stdio: 'inherit' });
});
