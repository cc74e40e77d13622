import { type Family, type Item, Queue } from './family.js';
import { type Integer, NotCounted, checkId, checkInteger, integer, integerOf, repeated } from './values.js';

const LONGEST_NAME = 200;
const PAIRS = 100;
const CALENDARS = ['calendar:day', 'calendar:month'];

/** A slice of a window: its start in Unix seconds, and its count. */
export type Slice = { start: number; count: Integer };

type Hit = Item & { name: string; n: Integer; at: string };

/** A family of kind `series`: counts over time. */
export class Series {
  private readonly queue = new Queue<Hit>((partition, hits) => this.count(partition, hits), PAIRS);

  /** @internal */
  constructor(private readonly family: Family) {}

  /**
   * Adds `n`, 1 or more, to the current slice of each window of this name, or to those of the time `at`, a `Date` or Unix
   * milliseconds. Throws as `Buffered.add`.
   */
  async add(name: string, n: Integer = 1, at?: Date | number): Promise<void> {
    checkId(name, LONGEST_NAME);
    checkInteger(n, 1);
    const hit = { name, n, at: millis(at) };
    const epoch = await this.family.describe();
    integerOf(name, await this.queue.push(this.family, this.family.partition(name, epoch), { of: epoch.partitions, ...hit }));
  }

  /** Returns a window of this name, such as `60s` or `day`: all its slices, the oldest first. The last one is not over. */
  async get(name: string, label: string): Promise<Slice[]> {
    checkId(name, LONGEST_NAME);
    const epoch = await this.family.describe();
    const { labels } = epoch.settings;
    if (!labels.includes(label)) throw new NotCounted('BADARG', `${this.family.name} has no ${label}, but ${labels}`);
    const partition = this.family.partition(name, epoch);
    const window = this.family.keys(partition, `series:${label}:${name}`);
    const texts = await this.family.readOfHome('series_get', partition, CALENDARS, window, label);
    const [starts = [], counts = []] = texts.map((text) => String(text).split(' '));
    return starts.map((start, i) => ({ start: Number(start), count: integer(counts[i]!) }));
  }

  private async count(partition: number, hits: Hit[]): Promise<void> {
    const { status, words } = await this.family.count('series_add', partition, hits[0]!.of, ({ labels }) => {
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

/** Returns a time in Unix milliseconds, or nothing for now. */
function millis(at?: Date | number): string {
  if (at === undefined) return '';
  const ms = Math.floor(Number(at));
  if (ms >= 0 && ms < 1e15) return String(ms);
  throw new NotCounted('BADTIME', `expected a Date, or Unix milliseconds, not ${at}`);
}
