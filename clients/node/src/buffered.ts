import type { Call } from './call.js';
import { type Family, type Item, Queue, type Request, requestsOf, setWords } from './family.js';
import { Later, type LaterOptions } from './later.js';
import type { Daemons, Fallback, Fallbacks } from './value.js';
import { type CounterfoilError, type Id, type Integer, NotCounted, checkInteger, integerOf, memo, repeated, textOf } from './values.js';

/** An id and what to add to it. */
export type Pair = readonly [id: Id, delta: Integer];

type Hit = Item & { partition: number; id: string; delta: Integer };

/** A family of kind `buffered`: sums of deltas. */
export class Buffered extends Later<string> {
  private readonly queue = new Queue<Hit>((home, hits) => this.count(home, hits));
  private readonly keys = new Map<number, string[]>();

  /** @internal */
  constructor(family: Family, private readonly daemons: Daemons, options: LaterOptions) { super(family, options); }

  /**
   * Adds `delta` to the counter. Concurrent calls share a round trip.
   * @returns what the counter has pending, i.e. not yet in MySQL; null if it was counted and that reply was lost
   * @throws NotCounted (`BADID`, `BADARG`, `FULL`, `RANGE`, `OOM`, `UNREACHABLE`...), OutcomeUnknown or Misconfigured
   */
  async add(id: Id, delta: Integer = 1): Promise<Integer | null> { return integerOf(id, await this.push(id, delta)); }

  /** Adds to many counters. Returns for each pair what `add` returns, or its error: they fail separately. */
  async addMany(pairs: Iterable<Pair> | Record<string, Integer>): Promise<(Integer | null | CounterfoilError)[]> {
    const list = Symbol.iterator in pairs ? [...(pairs as Iterable<Pair>)] : Object.entries(pairs);
    if (!list.every(Array.isArray)) throw new NotCounted('BADARG', 'expected pairs of an id and a delta');
    return Promise.all(list.map(([id, delta]) => this.add(id, delta).catch((error: CounterfoilError) => error)));
  }

  /**
   * Returns the epoch to store with a job before its first run, and to pass to `addOnce` in each run.
   * @param request names the work: 1 to 64 bytes
   */
  async requestEpoch(request: Id, id: Id): Promise<string> { return this.family.requestEpoch(request, id); }

  /**
   * Adds once for this request, however many processes call it. Redis remembers a request for an hour, or as long as the
   * family's `remember_requests`.
   * @param epoch what `requestEpoch` returned before the first run: then it never counts twice. By default the current one
   * @returns true if it was counted now, false if it was counted before
   */
  async addOnce(request: Id, id: Id, delta: Integer = 1, epoch?: string): Promise<boolean> {
    const word = await this.push(id, delta, { name: textOf(request, 64), epoch });
    const before = /^BEFORE:(.*)$/.exec(String(word));
    integerOf(id, before ? before[1] : word);
    return !before;
  }

  /**
   * Adds to a sum in this process, which is sent within `laterEvery`. A killed process loses what it has not sent. `flush` and
   * `onError` report failures.
   * @throws NotCounted (`BADID`, `BADARG`; `RANGE`: the sum is beyond 64 bits; `BUSY`: 100,000 sums wait; `CLOSED`)
   */
  later(id: Id, delta: Integer = 1): void {
    const text = textOf(id);
    if (this.family.known) this.family.check(text, this.family.known);
    checkInteger(delta);
    this.keep(text, text, delta);
  }

  /** Returns the exact value: what MySQL has, and what is pending; or the fallback, if none arrives in time. */
  async value(id: Id, fallback?: Fallback): Promise<Integer> { return this.daemons.value(this.family, id, fallback); }

  /** Returns the exact values of many counters, in the order of their ids: a request for 1,000 of them. */
  async values(ids: Iterable<Id>, fallback?: Fallbacks): Promise<Integer[]> {
    return this.daemons.values(this.family, ids, fallback);
  }

  /** @internal */
  protected countSum(id: string, n: Integer): Promise<unknown> { return this.add(id, n); }

  /** @internal */
  protected idOf(id: string): string { return id; }

  /** Shares a call with others, and returns the word for this hit. */
  private async push(counter: Id, delta: Integer, request?: Request): Promise<unknown> {
    const id = textOf(counter);
    checkInteger(delta);
    const until = this.family.deadline();
    const epoch = this.family.known ?? (await this.family.describe(until));
    const partition = this.family.partition(id, epoch, request?.name);
    const hit: Hit = { partition, of: epoch.partitions, until, id, delta, ...(request && { request }) };
    return this.queue.push(this.family.home(partition), hit);
  }

  /** Counts hits in one call. */
  private async count(home: number, hits: Hit[]): Promise<void> {
    const groups = new Map<number, Hit[]>();
    for (const hit of hits) memo(groups, hit.partition, () => [] as Hit[]).push(hit);
    const sorted = [...groups.values()].flat();
    const build = () => this.call(groups, requestsOf(sorted).length);
    const { status, words } = await this.family.count('buffered_add', home, sorted, build);
    if (status === 'OK') { // removes the total in front of each partition's words
      let next = 0;
      for (const group of groups.values()) {
        words.splice(next, 1);
        next += group.length;
      }
    }
    setWords(this.family, home, sorted, status === 'DUP' ? repeated(sorted.length, words[0]) : words);
  }

  private call(groups: Map<number, Hit[]>, requests: number): Call {
    const call: Call = { keys: [], args: [requests] };
    for (const [partition, group] of groups) {
      call.keys.push(...memo(this.keys, partition, () => this.family.keys(partition, 'buffer', 'meta')));
      call.args.push(weight(group), group.length);
      for (const { id, delta } of group) call.args.push(id, String(delta));
    }
    return call;
  }
}

/** Returns how many hits the deltas stand for. Redis uses it only to decide when a sync is due. */
function weight(hits: Hit[]): number {
  const sum = hits.reduce((sum, { delta }) => sum + Math.abs(Number(delta)), 0);
  return Math.min(Math.max(sum, 1), 1000);
}
