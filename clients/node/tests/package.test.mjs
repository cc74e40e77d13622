// The package itself: both module systems, types.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { pathToFileURL } from 'node:url';
import * as esm from 'counterfoil';
import { require } from './support.mjs';

test('ESM and CommonJS have the same classes', () => {
  const { ...names } = esm;
  assert.deepEqual({ ...require('counterfoil') }, names);
});

test('instanceof knows the errors of another copy, such as bundlers make', async () => {
  const copy = await import(new URL('esm/index.js', pathToFileURL(require.resolve('counterfoil'))));
  class Own extends esm.NotCounted {}
  const { CounterfoilError, NotCounted, OutcomeUnknown } = esm;
  const classes = [CounterfoilError, NotCounted, OutcomeUnknown, Own];
  const isOf = (error) => classes.map((each) => Number(error instanceof each)).join('');
  assert.notEqual(copy.NotCounted, NotCounted);
  assert.deepEqual([new copy.NotCounted('A', 'b'), new copy.OutcomeUnknown('A', 'b'), new Own('A', 'b'), new Error('A'), null].map(isOf), ['1100', '1010', '1101', '0000', '0000']);
});

test('the programs of the README are JavaScript', () => {
  const programs = [...readFileSync('README.md', 'utf8').matchAll(/^```js\n([^]*?)^```$/gm)];
  assert.ok(programs.length > 3);
  for (const [, program] of programs) execFileSync(process.execPath, ['--check', '--input-type=module'], { input: program });
});

test('the types fit both libraries', () => {
  execFileSync(process.execPath, [require.resolve('typescript').replace(/lib\/[^/]*$/, 'bin/tsc'), '-p', import.meta.dirname], { stdio: 'inherit' });
});
