import { type Family, type Item, Queue } from './family.js';
import { Later, type LaterOptions } from './later.js';
import { type Daemons, type Fallback, type Fallbacks, valuesOr } from './value.js';
import { type Bytes, type Id, type Integer, NotCounted, integerOf, keyOf, textOf, visitorOf } from './values.js';

/** A visit of a scope on a day. */
type Visit = { scope: string; day: string; visitor: Bytes };

type Hit = Item & { id: string; visitor: Bytes };

/** A family of kind `visitors`: each visitor of a scope counts once a day. */
export class Visitors extends Later<Visit> {
  private readonly queue = new Queue<Hit>((partition, hits) => this.count(partition, hits));

  /** @internal */
  constructor(family: Family, private readonly daemons: Daemons, options: LaterOptions) { super(family, options); }

  /**
   * Counts the visitor if it is the first visit of the day, and returns whether it is. Throws as `Buffered.add`.
   * @param scope what is visited, such as a shop
   * @param day `YYYY-MM-DD`, by the application's calendar
   */
  async firstVisit(scope: Id, day: string, visitor: Id | Uint8Array): Promise<boolean> {
    return (await this.countSum(visitOf(scope, day, visitor))) === 1;
  }

  /**
   * Counts the visitor soon, like `Buffered.later`. Repeats merge into one visit.
   * @throws NotCounted (`BADID`, `BUSY`, `CLOSED`)
   */
  later(scope: Id, day: string, visitor: Id | Uint8Array): void {
    const visit = visitOf(scope, day, visitor);
    if (this.family.known) this.family.check(this.idOf(visit), this.family.known);
    const key = `${day}${visit.scope.length}:${visit.scope}${keyOf(visit.visitor)}`;
    this.keep(key, { ...visit, visitor: Buffer.from(visit.visitor) }, 1);
  }

  /** Returns the exact number of visitors of a day; or the fallback, if none arrives in time. */
  async value(scope: Id, day: string, fallback?: Fallback): Promise<Integer> {
    return (await this.values([[scope, day]], fallback))[0]!;
  }

  /** Returns the exact numbers of visitors of many scopes and days, in their order. */
  async values(days: Iterable<readonly [scope: Id, day: string]>, fallback?: Fallbacks): Promise<Integer[]> {
    const list = [...days].map(([scope, day]) => ({ scope: textOf(scope), day: dayOf(day) }));
    const deadline = this.family.deadlineOfRead();
    return valuesOr(fallback, list.length, async () => {
      const epoch = await this.family.describe(deadline);
      const ids = list.map((one) => textOf(this.idOf(one)));
      for (const id of ids) this.family.check(id, epoch);
      return this.daemons.find(this.family, ids, deadline);
    });
  }

  /** @internal */
  protected async countSum({ scope, day, visitor }: Visit): Promise<Integer | null> {
    const until = this.family.deadline();
    const epoch = await this.family.describe(until);
    const id = textOf(this.idOf({ scope, day }));
    const hit: Hit = { of: epoch.partitions, until, id, visitor };
    return integerOf(id, await this.queue.push(this.family.partition(id, epoch), hit));
  }

  /** @internal Joins them by the family's separator, or by `/` as long as that is not known. */
  protected idOf({ scope, day }: Omit<Visit, 'visitor'>): string {
    return scope + (this.family.known?.settings.separator ?? '/') + day;
  }

  private async count(partition: number, hits: Hit[]): Promise<void> {
    const { status, words } = await this.family.count('visitors_first', partition, hits, () => ({
      keys: this.family.keys(partition, 'buffer', 'meta', ...hits.map(({ id }) => `seen:${id}`)),
      args: [hits.length, ...hits.flatMap(({ id, visitor }) => [id, 1, visitor])],
    }));
    const results = status === 'DUP' ? words : words.slice(1); // without the total in front
    hits.forEach((hit, i) => (hit.word = results[i]));
  }
}

const visitOf = (scope: Id, day: string, visitor: Id | Uint8Array): Visit =>
  ({ scope: textOf(scope), day: dayOf(day), visitor: visitorOf(visitor) });

function dayOf(day: string): string {
  if (new Date(day).toJSON()?.startsWith(`${day}T`)) return day;
  throw new NotCounted('BADID', `expected a day as YYYY-MM-DD, not ${day}`);
}
