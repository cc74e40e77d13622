import { type Family, type Item, Queue } from './family.js';
import type { Daemons } from './value.js';
import { type Bytes, type Integer, NotCounted, checkId, integerOf } from './values.js';

type Visit = Item & { id: string; visitor: Bytes };

/** A family of kind `visitors`: each visitor of a scope counts once a day. */
export class Visitors {
  private readonly queue = new Queue<Visit>((partition, visits) => this.count(partition, visits));

  /** @internal */
  constructor(private readonly family: Family, private readonly daemons: Daemons) {}

  /**
   * Counts the visitor if it is the first visit of the day, and returns whether it is. Throws as `Buffered.add`.
   * @param scope what is visited, such as a shop
   * @param day `YYYY-MM-DD`, by the application's calendar
   */
  async firstVisit(scope: string, day: string, visitor: Bytes): Promise<boolean> {
    const id = idOf(scope, day);
    checkId(visitor);
    const epoch = await this.family.describe();
    const visit: Visit = { of: epoch.partitions, id, visitor };
    return integerOf(id, await this.queue.push(this.family, this.family.partition(id, epoch), visit)) === 1;
  }

  /** Returns the exact number of visitors of a day. */
  async value(scope: string, day: string): Promise<Integer> { return this.daemons.value(this.family, idOf(scope, day)); }

  /** Returns the exact numbers of visitors of many scopes and days, in their order. */
  async values(days: Iterable<readonly [scope: string, day: string]>): Promise<Integer[]> {
    return this.daemons.values(this.family, [...days].map(([scope, day]) => idOf(scope, day)));
  }

  private async count(partition: number, visits: Visit[]): Promise<void> {
    const { status, words } = await this.family.count('visitors_first', partition, visits[0]!.of, ({ remember }) => ({
      keys: this.family.keys(partition, 'buffer', 'meta', ...visits.map(({ id }) => `seen:${id}`)),
      args: [remember, visits.length, ...visits.flatMap(({ id, visitor }) => [id, 1, visitor])],
    }));
    const results = status === 'DUP' ? words : words.slice(1); // behind a total
    visits.forEach((visit, i) => (visit.word = results[i]));
  }
}

function idOf(scope: string, day: string): string {
  checkId(scope);
  if (!new Date(day).toJSON()?.startsWith(`${day}T`)) throw new NotCounted('BADID', `expected a day as YYYY-MM-DD, not ${day}`);
  checkId(`${scope}/${day}`);
  return `${scope}/${day}`;
}
