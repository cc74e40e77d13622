// Programs that bundlers make of the package as it is installed, in an application that has ioredis and not node-redis.
import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { before, after, test } from 'node:test';
import { promisify } from 'node:util';
import * as esbuild from 'esbuild';
import { isLong, namespace, require, socket, unique } from './support.mjs';

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

/** Runs a bundle. Libraries that are not in the bundle are found in the folder above. */
async function counts(file) {
  const { stdout } = await run(process.execPath, [join(folder, file), socket, namespace, unique('page')]);
  assert.equal(stdout, '1 2 1 true\n');
}

test('esbuild, to CommonJS', async () => {
  await esbuild.build({ ...node, format: 'cjs', outfile: join(folder, 'esbuild.cjs') });
  await counts('esbuild.cjs');
});

test('esbuild, to ESM and minified', async () => { // a bundle in ESM cannot contain ioredis
  await esbuild.build({ ...node, format: 'esm', minify: true, external: ['ioredis'], outfile: join(folder, 'esbuild.mjs') });
  await counts('esbuild.mjs');
});

test('webpack', { skip: !isLong }, async () => {
  const { default: webpack } = await import('webpack');
  const output = { path: join(folder, 'webpack'), filename: 'main.cjs' };
  const compiler = webpack({ target: 'node', mode: 'production', context: folder, entry, output, optimization: { minimize: false }, resolve: { symlinks: false } });
  const stats = await promisify(compiler.run.bind(compiler))();
  assert.ok(!stats.hasErrors(), stats.toString('errors-only'));
  await counts('webpack/main.cjs');
});

test('Vite SSR', { skip: !isLong }, async () => {
  const { build } = await import('vite');
  const ssr = { noExternal: true };
  await build({ root: folder, logLevel: 'error', ssr, resolve: { preserveSymlinks: true }, build: { ssr: entry, outDir: join(folder, 'vite'), minify: false } });
  await counts(`vite/${readdirSync(join(folder, 'vite')).find((file) => file.startsWith('main'))}`);
});

const ROUTE = `
import { Counterfoil, NotCounted } from 'counterfoil';
export const dynamic = 'force-dynamic';
const opened = Counterfoil.connect(process.env.SOCKET, process.env.NAMESPACE);
export async function GET(request) {
  const views = (await opened).buffered('views');
  const error = await views.add('').catch((thrown) => thrown);
  return Response.json([await views.add(request.nextUrl.searchParams.get('page')), error instanceof NotCounted]);
}
`;
const LAYOUT = 'export default ({ children }) => <html><body>{children}</body></html>;';

/** Installs and builds, which takes most of a minute. */
test('Next.js: the default build, and output standalone', { skip: !process.env.COUNTERFOIL_TEST_NEXT }, async (t) => {
  const application = mkdtempSync(join(tmpdir(), 'next-'));
  t.after(() => rmSync(application, { recursive: true }));
  const artifact = join(dirname(require.resolve('counterfoil/package.json')), '../../artifact');
  const packages = ['next@15', 'react@19', 'react-dom@19', 'ioredis', join(artifact, readdirSync(artifact)[0])];
  mkdirSync(join(application, 'app/count'), { recursive: true });
  writeFileSync(join(application, 'package.json'), '{ "private": true }');
  writeFileSync(join(application, 'app/layout.jsx'), LAYOUT);
  writeFileSync(join(application, 'app/count/route.js'), ROUTE);
  const env = { ...process.env, NEXT_TELEMETRY_DISABLED: '1', SOCKET: socket, NAMESPACE: namespace, HOSTNAME: '127.0.0.1' };
  await run('npm', ['install', '--no-audit', '--no-fund', ...packages], { cwd: application });
  for (const [config, start] of [['{}', ['node_modules/next/dist/bin/next', 'start']], ["{ output: 'standalone' }", ['.next/standalone/server.js']]]) {
    writeFileSync(join(application, 'next.config.mjs'), `export default ${config};`);
    await run(process.execPath, ['node_modules/next/dist/bin/next', 'build'], { cwd: application, env });
    const server = spawn(process.execPath, start, { cwd: application, env: { ...env, PORT: '0' } });
    t.after(() => server.kill('SIGKILL'));
    let printed = '';
    server.stdout.setEncoding('utf8').on('data', (text) => (printed += text));
    while (!/Ready/.test(printed)) await once(server.stdout, 'data');
    const page = unique('page');
    const url = new URL('/count', /http:\/\/\S+/.exec(printed)[0]);
    for (const sum of [1, 2]) {
      url.search = `page=${page}`;
      assert.deepEqual(await (await fetch(url)).json(), [sum, true]);
    }
    server.kill('SIGKILL');
  }
});
