// The package itself: both module systems, types.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { isbot } from 'isbot';
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

test('what the README tells bots by', () => {
  const crawler = 'Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)';
  const browser = 'Mozilla/5.0 (X11; Linux x86_64; rv:143.0) Gecko/20100101 Firefox/143.0';
  assert.deepEqual([crawler, browser].map(isbot), [true, false]);
});

test('the types fit both libraries', () => {
  execFileSync(process.execPath, [require.resolve('typescript').replace(/lib\/[^/]*$/, 'bin/tsc'), '-p', import.meta.dirname], { stdio: 'inherit' });
});
