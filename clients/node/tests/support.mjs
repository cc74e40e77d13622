// Helpers of the tests: connections of each library, and a proxy that loses requests and replies.
import { once } from 'node:events';
import { createRequire } from 'node:module';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { randomBytes } from 'node:crypto';

export const require = createRequire(import.meta.url);
export const {
  COUNTERFOIL_TEST_SOCKET: socket,
  COUNTERFOIL_TEST_NAMESPACE: namespace,
  COUNTERFOIL_TEST_DAEMON: daemon,
} = process.env;

export const isLong = Boolean(process.env.COUNTERFOIL_LONG);

/** The newest version of each library, and the oldest that is supported. */
export const LIBRARIES = isLong ? ['ioredis', 'ioredis-5', 'redis', 'redis-5'] : ['ioredis', 'redis'];

/** Options for a busy machine. */
export const patient = { retryFor: 10_000, timeout: 2_000 };

export const unique = (name) => `${name}-${randomBytes(4).toString('hex')}`;

/** Returns an application's client, connected to a socket. The test that is given closes it. */
export async function clientOf(t, library, path = socket, options = {}) {
  if (library.startsWith('ioredis')) {
    const redis = new (require(library).Redis)(path, options);
    redis.on('error', () => {});
    t.after(() => redis.disconnect());
    if (!options.lazyConnect) await once(redis, 'ready');
    return redis;
  }
  const redis = require(library).createClient({ ...options, socket: { reconnectStrategy: () => 20, ...options.socket, path } });
  redis.on('error', () => {});
  await redis.connect();
  t.after(() => redis.isOpen && redis.destroy());
  return redis;
}

/** Sends a command over a socket of its own, without the libraries. */
export async function command(...args) {
  const redis = new (require('ioredis').Redis)(socket);
  try {
    return await redis.call(...args);
  } finally {
    redis.disconnect();
  }
}

export const { SCRIPTS } = require(join(dirname(require.resolve('counterfoil')), 'scripts.js'));

/** Configures a family without the daemon. */
export async function configure(family, partitions, { kind = 'buffered', settings = {}, ...more } = {}, send = command) {
  const all = { max_pending: 1_000_000, ...settings };
  const keys = ['0}:calls', ...Array.from({ length: partitions }, (_, i) => `${i}}:meta`)].map((end) => `cf1:{${namespace}/${family}/${end}`);
  const description = { wide: false, separator: '/', ids: '[\\s\\S]{1,255}', ids_in_words: '1 to 255 bytes of UTF-8', ...more };
  await send('EVAL', SCRIPTS.family_configure, keys.length, ...keys, 'salt', '', kind, partitions, '', JSON.stringify(description), ...Object.entries(all).flat());
}

/** Counts the commands that are sent with a client: Redis itself also executes those of the daemon. */
export function commandsOf(redis) {
  const counted = { calls: 0 };
  const method = redis.call ? 'call' : 'sendCommand';
  const send = redis[method].bind(redis);
  redis[method] = (...args) => {
    counted.calls += 1;
    return send(...args);
  };
  return counted;
}

/** A socket in front of Redis. `fate` decides about each packet of a client: pass, silence (no reply), or cut (executed, no reply). */
export async function proxyOf(t) {
  const path = join(tmpdir(), `${unique('proxy')}.sock`);
  const proxy = { path, fate: () => 'pass', isAway: false, connections: new Set() };
  const server = net.createServer((client) => {
    if (proxy.isAway) return client.destroy();
    const upstream = net.connect(socket);
    let silent = false;
    proxy.connections.add(client);
    client.on('data', (data) => {
      const fate = proxy.fate(data.toString('latin1'));
      silent ||= fate !== 'pass';
      upstream.write(data);
      if (fate === 'cut') upstream.once('data', () => client.destroy());
    });
    upstream.on('data', (data) => silent || client.write(data));
    client.on('close', () => upstream.destroy()).on('error', () => {});
    upstream.on('close', () => client.destroy()).on('error', () => {});
  });
  await new Promise((resolve) => server.listen(path, resolve));
  t.after(() => {
    server.close();
    for (const client of proxy.connections) client.destroy();
  });
  return proxy;
}

/** Loses requests or replies a number of times, as a test asks, and passes the others. */
export function first(times, fate, matching = /EVALSHA/i) {
  let left = times;
  return (data) => (matching.test(data) && left-- > 0 ? fate : 'pass');
}
