import { type Family, Queue } from './family.js';
import type { ExactReader } from './value.js';
import { type Bytes, type Integer, NotCounted, checkId, checkVisitor, result } from './values.js';

type Item = { id: string; visitor: Bytes };

/** A family of kind `visitors`: each visitor of a scope counts once a day. */
export class Visitors {
  private readonly queue = new Queue<Item, Integer>((partition, items) => this.count(partition, items));

  /** @internal */
  constructor(private readonly family: Family, private readonly reader: ExactReader) {}

  /**
   * Counts the visitor if it is the first visit of the day, and returns whether it is. Throws as `Buffered.add`.
   * @param scope what is visited, such as a shop
   * @param day `YYYY-MM-DD`, by the application's calendar
   */
  async firstVisit(scope: string, day: string, visitor: Bytes): Promise<boolean> {
    const id = idOf(scope, day);
    checkVisitor(visitor);
    return (await this.queue.push(this.family.partition(id, await this.family.describe()), { id, visitor })) === 1;
  }

  /** Returns the exact number of visitors of a day. */
  async value(scope: string, day: string): Promise<Integer> { return this.reader.value(this.family, idOf(scope, day)); }

  private async count(partition: number, items: Item[]): Promise<(Integer | Error)[]> {
    const keys = this.family.keys(partition, 'buffer', 'meta', ...items.map(({ id }) => `seen:${id}`));
    const visits = [items.length, ...items.flatMap(({ id, visitor }) => [id, 1, visitor])];
    const { status, words } = await this.family.count('visitors_first', partition, ({ remember }) => [keys, [remember, ...visits]]);
    return items.map(({ id }, i) => result(id, words[status === 'DUP' ? i : i + 1])); // OK has a total before
  }
}

function idOf(scope: string, day: string): string {
  checkId(scope);
  checkId(`${scope}/${day}`);
  if (!/^\d{4}-\d\d-\d\d$/.test(day)) throw new NotCounted('BADID', `expected a day as YYYY-MM-DD, not ${day}`);
  return `${scope}/${day}`;
}
