import { type Family, type Item, Queue } from './family.js';
import { Later, type LaterOptions } from './later.js';
import { type Id, type Integer, NotCounted, checkInteger, integer, integerOf, repeated, textOf } from './values.js';

const LONGEST_NAME = 200;
const PAIRS = 100;
const CALENDARS = ['calendar:day', 'calendar:month'];

/** A slice of a window: its start in Unix seconds, and its count. */
export type Slice = { start: number; count: Integer };

/** A name, and the time of a hit in Unix milliseconds, `''` for now. */
type Moment = { name: string; at: string };

type Hit = Item & Moment & { n: Integer };

/** A family of kind `series`: counts over time. */
export class Series extends Later<Moment> {
  private readonly queue = new Queue<Hit>((partition, hits) => this.count(partition, hits), PAIRS);

  /** @internal */
  constructor(family: Family, options: LaterOptions) { super(family, options); }

  /**
   * Adds `n`, 1 or more, to the current slice of each window of this name, or to those of the time `at`, a `Date` or Unix
   * milliseconds. Throws as `Buffered.add`.
   */
  async add(name: Id, n: Integer = 1, at?: Date | number): Promise<void> {
    return this.countSum(checkMoment(name, n, at), n);
  }

  /**
   * Adds soon, like `Buffered.later`. Without `at` a hit counts in the slice in which Redis receives it.
   * @throws NotCounted (`BADID`, `BADARG`, `BADTIME`, `BUSY`, `CLOSED`)
   */
  later(name: Id, n: Integer = 1, at?: Date | number): void {
    const moment = checkMoment(name, n, at);
    if (this.family.known) this.family.check(moment.name, this.family.known);
    this.keep(`${moment.at} ${moment.name}`, moment, n);
  }

  /** Returns a window of this name, such as `60s` or `day`: all its slices, the oldest first. The last one is not over. */
  async get(name: Id, label: string): Promise<Slice[]> {
    const series = textOf(name, LONGEST_NAME);
    const deadline = this.family.deadlineOfRead();
    const epoch = await this.family.describe(deadline);
    const { labels } = epoch.settings;
    if (!labels.includes(label)) throw new NotCounted('BADARG', `${this.family.name} has no ${label}, but ${labels}`);
    const partition = this.family.partition(series, epoch);
    const window = this.family.keys(partition, `series:${label}:${series}`);
    const keys = [...this.family.keys(this.family.home(partition), ...CALENDARS), ...window];
    const texts = await this.family.readOfHome('series_get', partition, keys, label, deadline);
    const [starts = [], counts = []] = texts.map((text) => String(text).split(' '));
    return starts.map((start, i) => ({ start: Number(start), count: integer(counts[i]!) }));
  }

  /** @internal */
  protected async countSum({ name, at }: Moment, n: Integer): Promise<void> {
    const until = this.family.deadline();
    const epoch = await this.family.describe(until);
    const hit: Hit = { of: epoch.partitions, until, name, at, n };
    integerOf(name, await this.queue.push(this.family.partition(name, epoch), hit));
  }

  /** @internal */
  protected idOf({ name }: Moment): string { return name; }

  private async count(partition: number, hits: Hit[]): Promise<void> {
    const { status, words } = await this.family.count('series_add', partition, hits, ({ labels }) => {
      const windows = hits.flatMap(({ name }) => labels.map((label: string) => `series:${label}:${name}`));
      const own = this.family.keys(partition, 'buffer', 'meta', 'names', 'idle', ...windows);
      return {
        keys: [...this.family.keys(this.family.home(partition), ...CALENDARS), ...own],
        args: hits.flatMap(({ name, n, at }) => [name, String(n), at]),
      };
    });
    const results = status === 'DUP' ? repeated(hits.length, words[0]) : words.slice(1);
    hits.forEach((hit, i) => (hit.word = results[i]));
  }
}

function checkMoment(name: Id, n: Integer, at?: Date | number): Moment {
  checkInteger(n, 1);
  return { name: textOf(name, LONGEST_NAME), at: millis(at) };
}

/** Returns a time in Unix milliseconds, or `''` for now. */
function millis(at?: Date | number): string {
  if (at === undefined) return '';
  const ms = Math.floor(Number(at));
  if (ms >= 0 && ms < 1e15) return String(ms);
  throw new NotCounted('BADTIME', `expected a Date, or Unix milliseconds, not ${at}`);
}
