// Programs that bundlers make of the package as it is installed, in an application that has ioredis and not node-redis.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { before, after, test } from 'node:test';
import { promisify } from 'node:util';
import * as esbuild from 'esbuild';
import { build } from 'vite';
import webpack from 'webpack';
import { namespace, require, socket, unique } from './support.mjs';

const run = promisify(execFile);
const folder = mkdtempSync(join(tmpdir(), 'application-'));
const entry = join(folder, 'main.js');
const node = { absWorkingDir: folder, entryPoints: [entry], bundle: true, platform: 'node', preserveSymlinks: true, logLevel: 'silent' };

const PROGRAM = `
import { Redis } from 'ioredis';
import { Counterfoil, NotCounted } from 'counterfoil';
import { Counterfoil as Testing } from 'counterfoil/testing';

async function main() {
  const [socket, namespace, page] = process.argv.slice(2);
  const redis = new Redis(socket);
  const own = await Counterfoil.connect(socket, namespace);
  const sums = [await own.buffered('views').add(page), await new Counterfoil(redis, namespace).buffered('views').add(page)];
  sums.push(await new Testing(namespace).buffered('views').add(page));
  const error = await own.buffered('views').add('').catch((thrown) => thrown);
  await own.close();
  redis.disconnect();
  console.log(...sums, error instanceof NotCounted);
}
void main();
`;

before(() => {
  const modules = join(dirname(require.resolve('counterfoil/package.json')), '..');
  mkdirSync(join(folder, 'node_modules'));
  for (const name of readdirSync(modules).filter((one) => !/^(@?redis|redis-5|\..*)$/.test(one))) {
    symlinkSync(join(modules, name), join(folder, 'node_modules', name));
  }
  writeFileSync(join(folder, 'package.json'), '{ "private": true }');
  writeFileSync(entry, PROGRAM);
});
after(() => rmSync(folder, { recursive: true }));

/** Runs a bundle. It finds the installed libraries in the folder above, if it has left them out. */
async function counts(file) {
  const { stdout } = await run(process.execPath, [join(folder, file), socket, namespace, unique('page')]);
  assert.equal(stdout, '1 2 1 true\n');
}

test('esbuild, to CommonJS', async () => {
  await esbuild.build({ ...node, format: 'cjs', outfile: join(folder, 'esbuild.cjs') });
  await counts('esbuild.cjs');
});

test('esbuild, to ESM and minified', async () => { // which cannot hold ioredis itself
  await esbuild.build({ ...node, format: 'esm', minify: true, external: ['ioredis'], outfile: join(folder, 'esbuild.mjs') });
  await counts('esbuild.mjs');
});

test('webpack', async () => {
  const output = { path: join(folder, 'webpack'), filename: 'main.cjs' };
  const compiler = webpack({ target: 'node', mode: 'production', context: folder, entry, output, optimization: { minimize: false }, resolve: { symlinks: false } });
  const stats = await promisify(compiler.run.bind(compiler))();
  assert.ok(!stats.hasErrors(), stats.toString('errors-only'));
  await counts('webpack/main.cjs');
});

test('Vite SSR', async () => {
  const ssr = { noExternal: true };
  await build({ root: folder, logLevel: 'error', ssr, resolve: { preserveSymlinks: true }, build: { ssr: entry, outDir: join(folder, 'vite'), minify: false } });
  await counts(`vite/${readdirSync(join(folder, 'vite')).find((file) => file.startsWith('main'))}`);
});
