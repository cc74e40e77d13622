// A client of the Lua bundle for ioredis: what lua/README.md has in Python and PHP.
import { createHash, randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

const NOTHING_DONE = /OOM|MISCONF|NOREPLICAS|NOAUTH|WRONGTYPE|BADARG|BADKEY|BADSTATE|CROSSSLOT/;

export class OutcomeUnknown extends Error {}
export class NotCounted extends Error {}

/** Of the UTF-8 of a text; newer versions of Node have it in node:zlib. */
function crc32(text) {
  let crc = ~0;
  for (const byte of Buffer.from(text)) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit += 1) crc = (crc >>> 1) ^ (crc & 1 && 0xedb88320);
  }
  return ~crc >>> 0;
}

/** One caller in a family on a standalone server: it has one call in flight. */
export class Counter {
  static asked = new Map();

  caller = randomBytes(8).toString('hex');

  n = 0;

  kindAndPartitions = ['', ''];

  constructor(redis, scripts, family) { // family: "NAMESPACE/FAMILY"
    Object.assign(this, { redis, scripts, family });
  }

  async hit(id, n = 1) {
    const words = await this.count('buffered_add', await this.partition(id), ['buffer', 'meta'], [1, 1, id, n]);
    if (/[A-Z]/.test(words.at(-1))) throw new NotCounted(`${id}: ${words.at(-1)}`);
  }

  /** The new value. readRow(id) reads the value of its row from the primary, 0 where there is none. */
  async change(id, change, readRow) {
    const partition = await this.partition(id);
    const { retain, min, max } = await this.settings();
    const names = ['base', 'buffer', 'batch', 'meta'];
    let word;
    for (let seeds = 0; seeds < 10; seeds += 1) {
      [word] = await this.count('cached_incr', partition, names, [30000, min ?? '', max ?? '', 1, id, change]);
      if (!`${word}`.startsWith('MISS:')) break;
      const seed = [id, word.slice(5), await readRow(id)]; // after the ticket was received, never before
      await this.send('cached_seed', this.keys(partition, 'base'), [retain, '', ...seed]);
    }
    if (/[A-Z]/.test(word)) throw new NotCounted(`${id}: ${word}`);
    return BigInt(word);
  }

  /** The words after OK or DUP. */
  async count(script, partition, names, args) {
    const home = this.keys(0, 'calls', 'calls_before');
    const [epoch] = await this.ask();
    this.n += 1;
    const keys = [...home, ...this.keys(partition, ...names)];
    const [status, ...words] = await this.send(script, keys, [this.caller, this.n, epoch, '', ...args]);
    if (status === 'EXPIRED') Counter.asked.delete(this.family);
    // PASSED: two callers share a name
    if (status === 'EXPIRED' || status === 'PASSED') throw new OutcomeUnknown(status);
    return words;
  }

  /** Epoch, the one before, kind, number of partitions and settings, for 30 s. */
  async ask() {
    const askedAt = performance.now();
    const known = Counter.asked.get(this.family);
    if (askedAt < known?.until) return known.reply;
    const home = this.keys(0, 'calls', 'calls_before');
    const asking = this.send('family_epoch', home, [...this.kindAndPartitions, '', '']);
    const [status, ...reply] = await asking.catch((error) => {
      throw new NotCounted('no epoch', { cause: error });
    });
    if (status !== 'OK') throw new NotCounted(`${this.family}: ${[status, ...reply]}`); // UNCONFIGURED, MISMATCH
    this.kindAndPartitions = reply.slice(2, 4);
    Counter.asked.set(this.family, { reply, until: askedAt + 30000 });
    return reply;
  }

  async settings() {
    return JSON.parse((await this.ask())[4]);
  }

  async partition(id) {
    return crc32(id) % (await this.ask())[3];
  }

  keys(partition, ...names) {
    return names.map((name) => `cf1:{${this.family}/${partition}}:${name}`);
  }

  async send(script, keys, args) { // until there is a reply
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
          const nothingDone = NOTHING_DONE.test(error.message);
          throw new (nothingDone && !lost ? NotCounted : OutcomeUnknown)(error.message, { cause: error });
        }
        if (performance.now() > deadline) throw new OutcomeUnknown(error.message, { cause: error });
        lost = true; // an arrival of this call may have been executed, or may still be
        await sleep(50);
      }
    }
  }
}
