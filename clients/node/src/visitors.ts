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
    checkVisit(scope, day);
    checkId(visitor);
    const epoch = await this.family.describe();
    const id = scope + epoch.settings.separator + day;
    checkId(id);
    const visit: Visit = { of: epoch.partitions, id, visitor };
    return integerOf(id, await this.queue.push(this.family, this.family.partition(id, epoch), visit)) === 1;
  }

  /** Returns the exact number of visitors of a day. */
  async value(scope: string, day: string): Promise<Integer> { return (await this.values([[scope, day]]))[0]!; }

  /** Returns the exact numbers of visitors of many scopes and days, in their order. */
  async values(days: Iterable<readonly [scope: string, day: string]>): Promise<Integer[]> {
    const list = [...days];
    for (const [scope, day] of list) checkVisit(scope, day);
    const epoch = await this.family.describe();
    const ids = list.map(([scope, day]) => scope + epoch.settings.separator + day);
    for (const id of ids) this.family.check(id, epoch);
    return this.daemons.values(this.family, ids);
  }

  private async count(partition: number, visits: Visit[]): Promise<void> {
    const { status, words } = await this.family.count('visitors_first', partition, visits[0]!.of, () => ({
      keys: this.family.keys(partition, 'buffer', 'meta', ...visits.map(({ id }) => `seen:${id}`)),
      args: [visits.length, ...visits.flatMap(({ id, visitor }) => [id, 1, visitor])],
    }));
    const results = status === 'DUP' ? words : words.slice(1); // behind a total
    visits.forEach((visit, i) => (visit.word = results[i]));
  }
}

function checkVisit(scope: string, day: string): void {
  checkId(scope);
  if (!new Date(day).toJSON()?.startsWith(`${day}T`)) throw new NotCounted('BADID', `expected a day as YYYY-MM-DD, not ${day}`);
}
