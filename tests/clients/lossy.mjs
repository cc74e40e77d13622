#!/usr/bin/env node
// Counts hits with ioredis and its default retries, as a client of lossy.py; see there.
//
//     lossy.mjs SOCKET LUA_DIR HITS
//
// ioredis is looked up as any package is, and in NODE_PATH.
import { createHash, randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { setTimeout as sleep } from 'node:timers/promises';

// `import` would not look in NODE_PATH
const { Redis } = createRequire(import.meta.url)('ioredis');
const [socket, lua, hits] = process.argv.slice(2);

/** Of the UTF-8 of a text; newer versions of Node have it in node:zlib. */
function crc32(text) {
  let crc = ~0;
  for (const byte of Buffer.from(text)) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit += 1) crc = (crc >>> 1) ^ (crc & 1 && 0xedb88320);
  }
  return ~crc >>> 0;
}

class OutcomeUnknown extends Error {}
class NotCounted extends Error {}

/** One caller: it has one call in flight. */
class Counter {
  static epochs = new Map();

  caller = randomBytes(8).toString('hex');

  n = 0;

  constructor(redis, scripts, family, partitions) {
    Object.assign(this, { redis, scripts, family, partitions });
  }

  async hit(id, n = 1) {
    const home = this.keys(0, 'epochs', 'calls', 'calls_before');
    const epoch = await this.epoch(home);
    this.n += 1;
    const keys = [...home, ...this.keys(crc32(id) % this.partitions, 'buffer', 'meta')];
    const [status, ...words] = await this.send('buffered_add', keys, [this.caller, this.n, epoch, '', 1, 1, id, n]);
    if (status === 'EXPIRED') {
      Counter.epochs.delete(home[0]);
      throw new OutcomeUnknown(status);
    }
    if (/[A-Z]/.test(words.at(-1))) throw new NotCounted(`${id}: ${words.at(-1)}`);
  }

  async epoch(home) {
    const askedAt = performance.now();
    const told = Counter.epochs.get(home[0]);
    if (askedAt < told?.until) return told.epoch;
    const asked = this.send('family_epoch', home, ['buffered', this.partitions, '']);
    const [status, epoch] = await asked.catch((error) => {
      throw new NotCounted('no epoch', { cause: error });
    });
    if (status !== 'OK') throw new NotCounted(status);
    Counter.epochs.set(home[0], { epoch, until: askedAt + 30000 });
    return epoch;
  }

  keys(partition, ...names) {
    return names.map((name) => `cf1:{${this.family}/${partition}}:${name}`);
  }

  async send(script, keys, args) {
    const source = readFileSync(`${this.scripts}/${script}.lua`);
    let call = ['EVALSHA', createHash('sha1').update(source).digest('hex')];
    const deadline = performance.now() + 10000;
    for (let lost = false; ;) {
      try {
        return await this.redis.call(...call, keys.length, ...keys, ...args);
      } catch (error) {
        if (error.message.startsWith('NOSCRIPT')) {
          call = ['EVAL', source];
          continue;
        }
        const isReply = error.name === 'ReplyError';
        if (isReply && !/LOADING|BUSY|CLUSTERDOWN|MASTERDOWN|TRYAGAIN|READONLY/.test(error.message)) {
          const nothingDone = /OOM|MISCONF|NOREPLICAS|NOAUTH|WRONGTYPE|BADARG|BADKEY|BADSTATE|CROSSSLOT/.test(error.message);
          throw new (nothingDone && !lost ? NotCounted : OutcomeUnknown)(error.message, { cause: error });
        }
        if (performance.now() > deadline) throw new OutcomeUnknown(error.message, { cause: error });
        lost = true; // an arrival of this call may have been executed, or may still be
        await sleep(50);
      }
    }
  }
}

const redis = new Redis({ path: socket, commandTimeout: 2000 });
redis.on('error', () => {}); // it connects again by itself
const told = { counted: 0, unknown: 0 };
const ids = ['a', 'b', 'c', 'é'];
await Promise.all(ids.map(async (id, i) => {
  const counter = new Counter(redis, `${lua}/v1`, 'shop/hits', 4);
  for (let k = i; k < hits; k += ids.length) {
    try {
      await counter.hit(id);
      told.counted += 1;
    } catch (error) {
      if (!(error instanceof OutcomeUnknown)) throw error;
      console.error(error);
      told.unknown += 1;
    }
  }
}));
redis.disconnect();
console.log(JSON.stringify(told));
