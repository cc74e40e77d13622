#!/usr/bin/env node
// Runs lua/vectors against a Redis server, which must be a private one: every case empties it.
//
//     vectors.mjs SOCKET LUA_DIR
//
// ioredis is looked up as any package is, and in NODE_PATH.
import { readFileSync, readdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { basename, join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';

// `import` would not look in NODE_PATH
const { Redis } = createRequire(import.meta.url)('ioredis');

/** The array with its shorthands written out. */
const expanded = (items) => items.flatMap((item) => {
  if (item?.ids) return Array.from({ length: item.ids.count }, (_, i) => `${item.ids.prefix}${i + 1}`);
  if (item?.times) return Array(item.times).fill(item.of).flat();
  return [item];
});

/** As Redis takes and returns it: buffers, numbers, arrays. */
function raw(value) {
  if (Array.isArray(value)) return expanded(value).map(raw);
  if (typeof value === 'object') return Buffer.from(value.hex, 'hex');
  return typeof value === 'string' ? Buffer.from(value) : value;
}

const byKey = (pairs) => pairs.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));

/** A field or member, which stands in front of a colon, in hexadecimal: text, or hex: and digits. */
const name = (text) => (text.startsWith('hex:') ? text.slice(4) : raw(text).toString('hex'));

/** The content of a hash, which may be given as a fill, as sorted pairs of hexadecimal texts. */
function hashOf(fields) {
  if (typeof fields.fill === 'object') {
    const { prefix, count, value } = fields.fill;
    return hashOf(Object.fromEntries(Array.from({ length: count }, (_, i) => [`${prefix}${i + 1}`, value])));
  }
  return byKey(Object.entries(fields).map(([field, value]) => [name(field), raw(value).toString('hex')]));
}

const sorted = (buffers) => buffers.map((buffer) => buffer.toString('hex')).sort();

/** The content of a key afterwards: a hash, or {"zset": {...}} or {"set": [...]}, with its type. */
function contentOf(fields) {
  if (typeof fields.zset === 'object') return ['zset', hashOf(fields.zset)];
  if (Array.isArray(fields.set)) return ['set', sorted(raw(fields.set))];
  return ['hash', hashOf(fields)];
}

function pairs(flat) {
  const map = new Map();
  for (let i = 0; i < flat.length; i += 2) map.set(flat[i].toString('hex'), flat[i + 1].toString('hex'));
  return byKey([...map]);
}

const show = (value) => JSON.stringify(value, (_, item) =>
  item?.type === 'Buffer' ? Buffer.from(item.data).toString() : item);

class Run {
  constructor(redis, hashes) {
    this.redis = redis;
    this.hashes = hashes;
  }

  /** Every key of the database. */
  async contents() {
    const content = async (key, type) => {
      switch (type) {
        case 'hash': return pairs(await this.redis.callBuffer('HGETALL', key));
        case 'zset': return pairs(await this.redis.zrangeBuffer(key, 0, -1, 'WITHSCORES'));
        case 'set': return sorted(await this.redis.smembersBuffer(key));
        case 'string': return this.redis.get(key);
        default: return this.redis.lrange(key, 0, -1);
      }
    };
    const keys = (await this.redis.keys('*')).sort();
    return Promise.all(keys.map(async (key) => {
      const type = await this.redis.type(key);
      return [key, [type, await content(key, type)]];
    }));
  }

  async send(script, keys, args) {
    try {
      return await this.redis.callBuffer('EVALSHA', this.hashes.get(script), keys.length, ...keys, ...args);
    } catch (error) {
      if (error.name !== 'ReplyError') throw error;
      return error;
    }
  }

  /** What is wrong with the reply, or nothing. */
  async call(vectors, call) {
    const script = call.script ?? vectors.script;
    const keys = raw(call.keys ?? vectors.keys);
    const args = raw(call.args);
    if (call.pages) return this.pages(script, keys, args, call.pages);
    const before = await this.contents();
    const got = await this.send(script, keys, args);
    if (Array.isArray(call.reply)) {
      if (isDeepStrictEqual(got, raw(call.reply))) return undefined;
      return `expected ${show(call.reply)}, got ${got instanceof Error ? got : show(got)}`;
    }
    const [, word, text] = call.reply.error.match(/^(\S+) ?([^]*)$/);
    // the word comes first, unless it is Redis's own: 6.2 has "Error running script" in front of it
    if (!(got instanceof Error) || !got.message.split(' ').includes(word) || !got.message.includes(text)) {
      return `expected the error ${call.reply.error}, got ${got instanceof Error ? got : show(got)}`;
    }
    return isDeepStrictEqual(await this.contents(), before) ? undefined : `${got}, but keys were changed`;
  }

  async pages(script, keys, args, { cursor, collected, more_than: moreThan }) {
    const found = [];
    while (!found.length || args[cursor - 1].toString() !== '0') {
      const reply = await this.send(script, keys, args);
      if (!Array.isArray(reply) || reply[0].toString() !== 'OK' || found.length > 100000) {
        return `page ${found.length + 1}: ${show(reply)}`;
      }
      args[cursor - 1] = reply[1];
      found.push(reply[2]);
    }
    if (found.length <= moreThan) return `expected more than ${moreThan} pages, got ${found.length}`;
    const [got, expected] = [pairs(found.flat()), hashOf(collected)];
    return isDeepStrictEqual(got, expected) ? undefined : `expected ${show(expected)}, got ${show(got)}`;
  }

  async setUp(vectors, steps) {
    for (const step of steps) {
      if (typeof step === 'string') {
        await this.setUp(vectors, vectors.setups[step]);
      } else if (Array.isArray(step)) {
        await this.redis.call(step[0], ...raw(step.slice(1)));
      } else {
        const fields = hashOf(step).flat().map((text) => Buffer.from(text, 'hex'));
        await this.redis.call('HSET', step.fill.key, ...fields);
      }
    }
  }

  async case(vectors, { setup = [], calls, after }) {
    await this.redis.flushdb();
    await this.setUp(vectors, setup);
    const expected = new Map(await this.contents());
    for (const [index, call] of calls.entries()) {
      const wrong = await this.call(vectors, call);
      if (wrong) return `call ${index + 1}: ${wrong}`;
    }
    if (!after) return undefined;
    for (const [key, fields] of Object.entries(after)) {
      if (fields) expected.set(key, contentOf(fields));
      else expected.delete(key);
    }
    const [got, wanted] = [await this.contents(), byKey([...expected])];
    return isDeepStrictEqual(got, wanted) ? undefined : `afterwards (in hex): expected ${show(wanted)}, got ${show(got)}`;
  }
}

const [socket, lua] = process.argv.slice(2);
const redis = new Redis({ path: socket, retryStrategy: null });
const hashes = new Map();
for (const file of readdirSync(join(lua, 'v1')).filter((name) => name.endsWith('.lua'))) {
  hashes.set(basename(file, '.lua'), await redis.script('LOAD', readFileSync(join(lua, 'v1', file))));
}
const run = new Run(redis, hashes);
let [passed, failed] = [0, 0];
for (const file of readdirSync(join(lua, 'vectors')).filter((name) => name.endsWith('.json')).sort()) {
  const text = readFileSync(join(lua, 'vectors', file), 'utf8');
  const vectors = JSON.parse(text.replaceAll('"@', `"${JSON.parse(text).prefix}`));
  for (const one of vectors.cases) {
    const wrong = await run.case(vectors, one);
    if (wrong) console.log(`${one.id}: ${wrong}`);
    if (wrong) failed += 1;
    else passed += 1;
  }
}
redis.disconnect();
console.log(`${passed} passed, ${failed} failed`);
process.exitCode = failed || !passed ? 1 : 0;
