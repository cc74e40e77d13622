import { crc32 } from 'node:zlib';
import type { Call } from './call.js';
import { type Family, Queue, byPartition } from './family.js';
import { Later, type OnError, type Pair } from './later.js';
import type { ExactReader } from './value.js';
import { type CounterfoilError, type Integer, checkId, checkInteger, repeated, result } from './values.js';

type Item = { partition: number; id: string; delta: Integer; result?: Integer | null | Error };

/** A family of kind `buffered`: sums of deltas. */
export class Buffered extends Later {
  private readonly queue = new Queue<Item, Integer | null>((home, items) => this.count(home, items));

  /** @internal */
  constructor(family: Family, private readonly reader: ExactReader, every?: number, onError?: OnError) { super(family, every, onError); }

  /**
   * Adds `delta` to the counter. Concurrent calls share a round trip.
   * @returns what the counter has pending, i.e. not yet in MySQL; null if it was counted and that reply was lost
   * @throws NotCounted (`BADID`, `BADARG`, `FULL`, `RANGE`, `OOM`, `no epoch`...), OutcomeUnknown or Misconfigured
   */
  async add(id: string, delta: Integer = 1): Promise<Integer | null> {
    checkId(id);
    checkInteger(delta);
    const partition = this.family.partition(id, this.family.known ?? (await this.family.describe()));
    return this.queue.push(this.family.home(partition), { partition, id, delta });
  }

  /** Adds to many counters. Returns for each pair what `add` returns, or its error: they fail separately. */
  async addMany(pairs: Iterable<Pair> | Record<string, Integer>): Promise<(Integer | null | CounterfoilError)[]> {
    const list = Symbol.iterator in pairs ? [...(pairs as Iterable<Pair>)] : Object.entries(pairs);
    return Promise.all(list.map(([id, delta]) => this.add(id, delta).catch((error: CounterfoilError) => error)));
  }

  /**
   * Returns the epoch to store with a job before its first run, and to pass to `addOnce` in each run.
   * @param request names the work: 1 to 64 bytes
   */
  async requestEpoch(request: string, id: string): Promise<string> {
    return (await this.family.epoch(this.family.home(await this.requestPartition(request, id)))).current;
  }

  /**
   * Adds once for this request, however many processes call it.
   * @param epoch what `requestEpoch` returned before the first run; by default the current one
   * @returns true if it was counted now, false if it was counted before
   */
  async addOnce(request: string, id: string, delta: Integer = 1, epoch?: string): Promise<boolean> {
    checkInteger(delta);
    const partition = await this.requestPartition(request, id);
    const name = `request:${Buffer.byteLength(request)}:${request}:${id}`;
    const work = { name, epoch: epoch ?? (await this.requestEpoch(request, id)) };
    const { status, words } = await this.family.count('buffered_add', partition, () => this.call([[partition, [{ partition, id, delta }]]]), work);
    const outcome = status === 'DUP' ? repeated([id], words[0])[0] : result(id, words[1]);
    if (outcome instanceof Error) throw outcome;
    return status === 'OK';
  }

  /** Returns the exact value: what MySQL has, and what is pending. */
  async value(id: string): Promise<Integer> {
    checkId(id);
    return this.reader.value(this.family, id);
  }

  private async requestPartition(request: string, id: string): Promise<number> {
    checkId(request, 64);
    checkId(id);
    const { partitions, settings } = await this.family.describe();
    return crc32(settings.wide ? request : id) % partitions;
  }

  private async count(home: number, items: Item[]): Promise<(Integer | null | Error)[]> {
    const groups = byPartition(items);
    const { status, words } = await this.family.count('buffered_add', home, () => this.call(groups));
    const ids = groups.flatMap(([, group]) => group).map(({ id }) => id);
    const before = status === 'DUP' ? repeated(ids, words[0]) : undefined;
    let [pair, word] = [0, 0];
    for (const [, group] of groups) {
      word += 1; // the partition's total
      for (const item of group) item.result = before ? before[pair++] : result(item.id, words[word++]);
    }
    return items.map((item) => item.result as Integer | null | Error);
  }

  private call(groups: [partition: number, items: Item[]][]): Call {
    const [keys, args]: Call = [[], []];
    for (const [partition, group] of groups) {
      keys.push(...this.family.keys(partition, 'buffer', 'meta'));
      args.push(hits(group), group.length);
      for (const { id, delta } of group) args.push(id, String(delta));
    }
    return [keys, args];
  }
}

/** Returns how many hits the deltas stand for: when a sync is due depends on it. */
const hits = (items: Item[]): number => Math.min(Math.max(items.reduce((sum, { delta }) => sum + Math.abs(Number(delta)), 0), 1), 1000);
