// The build, and `next dev`. The second test needs Redis and the daemon.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { test } from 'node:test';
import { Redis } from 'ioredis';

const { COUNTERFOIL_REDIS } = process.env;
const BROWSER = 'Mozilla/5.0 (X11; Linux x86_64; rv:143.0) Gecko/20100101 Firefox/143.0';

test('the scripts are in the standalone server', () => {
  const { SCRIPTS } = createRequire(import.meta.url)('./node_modules/counterfoil/dist/scripts.js');
  const folder = '.next/standalone/.next/server/chunks';
  const chunks = readdirSync(folder).filter((name) => name.endsWith('.js')).map((name) => readFileSync(`${folder}/${name}`, 'utf8'));
  for (const name of Object.keys(SCRIPTS)) assert.ok(chunks.some((chunk) => chunk.includes(`${name}:`)), name);
});

test('a reload in next dev keeps the connection', { skip: !COUNTERFOIL_REDIS }, async (t) => {
  const source = readFileSync('lib/counts.js', 'utf8');
  const server = spawn(process.execPath, ['node_modules/next/dist/bin/next', 'dev', '--port', '0', '--hostname', '127.0.0.1']);
  const redis = new Redis(COUNTERFOIL_REDIS);
  t.after(() => {
    redis.disconnect();
    server.kill('SIGTERM');
    writeFileSync('lib/counts.js', source);
  });
  let printed = '';
  server.stdout.setEncoding('utf8').on('data', (text) => (printed += text));
  while (!/Ready/.test(printed)) await once(server.stdout, 'data');
  const [url] = /http:\/\/127\S+/.exec(printed);
  const connections = async () => (await redis.client('LIST')).trim().split('\n').length;
  const counted = [];
  for (let i = 0; i < 4; i += 1) {
    writeFileSync('lib/counts.js', source.replace("'not_counted'", `'not_counted_${i}'`));
    const options = { method: 'POST', headers: { 'User-Agent': BROWSER } };
    assert.deepEqual(await (await fetch(`${url}/products/4/views`, options)).json(), { counted: true });
    counted.push(await connections());
  }
  assert.deepEqual(counted, Array(4).fill(counted[0]));
});
