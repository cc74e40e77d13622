import { type Family, type Item, Queue, type Request, requestsOf, setWords } from './family.js';
import type { Daemons, Fallback, Fallbacks } from './value.js';
import { CounterfoilError, type Id, type Integer, NotCounted, UNCONFIGURED } from './values.js';
import { checkInteger, integer, integerOf, memo, textOf, uniqueName } from './values.js';

/** The number of times that a counter may be deleted between its seed and its change. */
const SEEDS = 10;

/**
 * A function that returns the value of a counter's row on the primary, null without a row. It is for an application that cannot
 * reach a daemon. It must not read in an open transaction, whose snapshot may be old: the counter would forget hits.
 */
export type ReadRow = (id: string) => Promise<Integer | null> | Integer | null;

type Change = Item & { id: string; change: string };

/** A family of kind `cached`: each change returns the new value, which stays within the family's bounds. */
export class Cached {
  private readonly queue = new Queue<Change>((partition, changes) => this.count(partition, changes));
  private readonly seeds = new Map<string, Promise<unknown>>();

  /** @internal If it is undefined, a daemon reads the row. */
  readRow: ReadRow | undefined;

  /** @internal */
  constructor(private readonly family: Family, private readonly daemons: Daemons) {}

  /**
   * Changes the counter by `delta`, and returns the new value.
   * @throws NotCounted with reason `RANGE` and the current `value` where the new one would be out of bounds; or as `Buffered.add`
   */
  async incr(id: Id, delta: Integer = 1): Promise<Integer> {
    checkInteger(delta);
    return this.change(id, String(delta));
  }

  /**
   * Changes the counter by `delta` once for this request, however many processes call it, and returns the value that it had
   * then. A request that the bounds refused is refused again.
   * @param epoch as in `Buffered.addOnce`
   */
  async incrOnce(request: Id, id: Id, delta: Integer = 1, epoch?: string): Promise<Integer> {
    checkInteger(delta);
    return this.change(id, String(delta), { name: textOf(request, 64), epoch });
  }

  /** Returns the epoch to store with a job before its first run, and to pass to `incrOnce` in each run. */
  async requestEpoch(request: Id, id: Id): Promise<string> { return this.family.requestEpoch(request, id); }

  /** Sets the counter, within its bounds, and returns the new value. */
  async set(id: Id, value: Integer): Promise<Integer> {
    checkInteger(value);
    return this.change(id, `=${value}`);
  }

  /** Returns the value. */
  async get(id: Id): Promise<Integer> {
    const [name, until] = [textOf(id), this.family.deadlineOfRead()];
    return this.seeded(name, until, async (partition) => {
      const args = [1, '', uniqueName(), '', name];
      const keys = this.family.keys(partition, 'base', 'buffer', 'batch', 'meta');
      const [word] = await this.family.read('cached_get', { keys, args }, until);
      if (String(word) !== UNCONFIGURED) return word;
      throw new NotCounted(UNCONFIGURED, `${this.family.name} in the partition of ${name}`, undefined, true);
    });
  }

  /** Returns the exact value, as `Buffered.value` does. It does not seed the counter in Redis, and needs no `readRow`. */
  async value(id: Id, fallback?: Fallback): Promise<Integer> { return this.daemons.value(this.family, id, fallback); }

  /** Returns the exact values of many counters, in the order of their ids: a request for 1,000 of them. */
  async values(ids: Iterable<Id>, fallback?: Fallbacks): Promise<Integer[]> {
    return this.daemons.values(this.family, ids, fallback);
  }

  private async change(counter: Id, change: string, request?: Request): Promise<Integer> {
    const [id, until] = [textOf(counter), this.family.deadline()];
    const item = { until, id, change, ...(request && { request }) };
    return this.seeded(id, until, (partition, of) => this.queue.push(partition, { ...item, of }));
  }

  /** Makes a call. While Redis does not have the counter, seeds it from its row, and makes the call again. */
  private async seeded(id: string, until: number, call: (partition: number, of: number) => Promise<unknown>): Promise<Integer> {
    const epoch = await this.family.describe(until);
    const partition = this.family.partition(id, epoch);
    for (let seeds = 0; ; seeds += 1) {
      const words = String(await call(partition, epoch.partitions)).replace(/^BEFORE:/, '');
      const [word = '', ...rest] = words.split(':');
      if (word === 'RANGE') throw new NotCounted(word, `the value of ${id} is ${rest[0]}, and would leave its bounds`, undefined, false, integer(rest[0]!));
      if (word !== 'MISS' || seeds === SEEDS) return integerOf(id, word)!;
      // callers that received the same ticket share one read of the row
      const key = `${rest[0]} ${id}`;
      await memo(this.seeds, key, () => this.seed(partition, id, rest[0]!, until).finally(() => this.seeds.delete(key)));
    }
  }

  private async seed(partition: number, id: string, ticket: string, until: number): Promise<void> {
    try {
      const read = this.readRow ? await this.readRow(id) : (await this.daemons.find(this.family, [id], until))[0]!;
      const row = read === null ? '-' : integer(String(read)); // some drivers return a text
      if (row !== '-') checkInteger(row);
      const keys = [...this.family.keys(this.family.home(partition), 'calls'), ...this.family.keys(partition, 'base')];
      const [word] = await this.family.read('cached_seed', { keys, args: ['', '', id, ticket, String(row)] }, until);
      if (word === 'NOROW' || word === 'BEYOND') throw new NotCounted(word, id);
    } catch (cause) {
      throw cause instanceof CounterfoilError ? cause : new NotCounted('readRow', (cause as Error).message, cause);
    }
  }

  private async count(partition: number, changes: Change[]): Promise<void> {
    const pairs = changes.flatMap(({ id, change }) => [id, change]);
    const { status, words } = await this.family.count('cached_incr', partition, changes, () => ({
      keys: this.family.keys(partition, 'base', 'buffer', 'batch', 'meta'),
      args: [requestsOf(changes).length, changes.length, ...pairs],
    }));
    setWords(this.family, this.family.home(partition), changes, status === 'DUP' ? String(words[0]).split(' ') : words);
  }
}
