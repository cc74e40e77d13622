import { randomBytes } from 'node:crypto';
import { type Family, Queue } from './family.js';
import type { ExactReader } from './value.js';
import { CounterfoilError, type Integer, NotCounted, checkId, checkInteger, integer, memo, plus, result } from './values.js';

const TICKET_MS = 30_000;
/** How often a counter may be deleted between its seed and its change. */
const SEEDS = 10;

/**
 * Reads the value of a counter's row, 0 where there is none: from the primary, and not in an open transaction. Without it the
 * daemon reads the row.
 */
export type ReadRow = (id: string) => Promise<Integer> | Integer;

type Item = { id: string; change: string };

/** A family of kind `cached`: each change returns the new value, which stays within the family's bounds. */
export class Cached {
  private readonly queue = new Queue<Item, string>((partition, items) => this.count(partition, items));
  private readonly seeds = new Map<string, Promise<unknown>>();

  /** @internal */
  constructor(private readonly family: Family, private readonly reader: ExactReader, private readonly readRow?: ReadRow) {}

  /**
   * Changes the counter by `delta`, and returns the new value.
   * @throws NotCounted with reason `RANGE` and the current `value` where the new one would be out of bounds; or as `Buffered.add`
   */
  async incr(id: string, delta: Integer = 1): Promise<Integer> {
    checkInteger(delta);
    return this.seeded(id, (partition) => this.queue.push(partition, { id, change: String(delta) }));
  }

  /** Sets the counter, within its bounds, and returns the new value. */
  async set(id: string, value: Integer): Promise<Integer> {
    checkInteger(value);
    return this.seeded(id, (partition) => this.queue.push(partition, { id, change: `=${value}` }));
  }

  /** Returns the value. */
  async get(id: string): Promise<Integer> {
    return this.seeded(id, async (partition) => {
      const args = [TICKET_MS, '', randomBytes(8).toString('hex'), id];
      return String(await this.family.read('cached_get', () => [this.family.keys(partition, 'base', 'buffer', 'batch'), args]));
    });
  }

  /** Returns the exact value like that of a buffered counter: it gives the counter no base, and needs no `readRow`. */
  async value(id: string): Promise<Integer> {
    checkId(id);
    return this.reader.value(this.family, id);
  }

  /** Makes a call, and again after a seed where the counter had no base. */
  private async seeded(id: string, call: (partition: number) => Promise<string>): Promise<Integer> {
    checkId(id);
    const partition = this.family.partition(id, await this.family.describe());
    for (let seeds = 0; ; seeds += 1) {
      const [word = '', ...rest] = (await call(partition)).split(':');
      if (word === 'SUM') return rest.reduce<Integer>((sum, part) => plus(sum, integer(part)), 0);
      if (word === 'RANGE') throw new NotCounted(word, `${id} is ${rest[0]}`, undefined, false, integer(rest[0]!));
      const value = result(id, word);
      if (!(value instanceof Error)) return value;
      if (word !== 'MISS' || seeds === SEEDS) throw value;
      // callers that missed it with the same ticket share one read of its row
      const key = `${rest[0]} ${id}`;
      await memo(this.seeds, key, () => this.seed(partition, id, rest[0]!).finally(() => this.seeds.delete(key)));
    }
  }

  private async seed(partition: number, id: string, ticket: string): Promise<unknown> {
    const row = await this.row(id).catch((cause) => {
      throw cause instanceof CounterfoilError ? cause : new NotCounted('readRow', cause.message, cause);
    });
    return this.family.read('cached_seed', ({ retain }) => [this.family.keys(partition, 'base'), [retain, '', id, ticket, String(row)]]);
  }

  private async row(id: string): Promise<Integer> { return this.readRow ? this.readRow(id) : this.reader.fromDaemon(this.family, id); }

  private async count(partition: number, items: Item[]): Promise<string[]> {
    const keys = this.family.keys(partition, 'base', 'buffer', 'batch', 'meta');
    const pairs = [items.length, ...items.flatMap(({ id, change }) => [id, change])];
    const reply = await this.family.count('cached_incr', partition, ({ min = '', max = '' }) => [keys, [TICKET_MS, min, max, ...pairs]]);
    return reply.status === 'DUP' ? String(reply.words[0]).split(' ') : reply.words.map(String);
  }
}
