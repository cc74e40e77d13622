import { slice, starts } from './calendar.js';
import { type Family, Queue, type Settings } from './family.js';
import { type Integer, Misconfigured, checkId, checkInteger, integer, repeated, result } from './values.js';

const LONGEST_NAME = 200;
const PAIRS = 100;

/** A slice of a window: its start in Unix seconds, and its count. */
export type Slice = { start: number; count: Integer };

type Item = { name: string; n: Integer };

/** A family of kind `series`: counts over time. */
export class Series {
  private readonly queue = new Queue<Item, unknown>((partition, items) => this.count(partition, items), PAIRS);

  /** @internal */
  constructor(private readonly family: Family) {}

  /** Adds `n`, 1 or more, to the current slice of each window of this name. Throws as `Buffered.add`. */
  async add(name: string, n: Integer = 1): Promise<void> {
    checkId(name, LONGEST_NAME);
    checkInteger(n, 1);
    await this.queue.push(this.family.partition(name, await this.family.describe()), { name, n });
  }

  /** Returns a window of this name, such as `60s` or `day`: all its slices, the oldest first. The last one is not over. */
  async get(name: string, label: string): Promise<Slice[]> {
    checkId(name, LONGEST_NAME);
    const epoch = await this.family.describe();
    const { windows, time_zone } = epoch.settings;
    const size = windows.find(([each]: [string]) => each === label)?.[1];
    if (!size) throw new Misconfigured('WINDOW', `${this.family.name} has no window ${label}, but ${JSON.stringify(windows)}`);
    const keys = this.family.keys(this.family.partition(name, epoch), `series:${label}:${name}`);
    const [now, text] = await this.family.read('series_get', () => [keys, ['']]);
    const counts = new Map([...String(text).matchAll(/(\d+) (\d+)/g)].map(([, start, count]) => [Number(start), integer(count!)]));
    return starts(label, time_zone, size, Math.floor(Number(now) / 1000)).map((start) => ({ start, count: counts.get(start) ?? 0 }));
  }

  private async count(partition: number, items: Item[]): Promise<unknown[]> {
    const names = items.map(({ name }) => name);
    const { status, words } = await this.family.count('series_add', partition, (settings, now) => {
      const windows = names.flatMap((name) => settings.windows.map(([label]: [string]) => `series:${label}:${name}`));
      const precisions = precisionsAt(settings, Math.floor(now / 1000));
      const pairs = items.flatMap(({ name, n }) => [name, String(n)]);
      return [this.family.keys(partition, 'open', 'schedule', 'names', 'idle', ...windows), [precisions.length, ...precisions, ...pairs]];
    });
    return status === 'DUP' ? repeated(names, words[0]) : names.map((name, i) => result(name, words[i]));
  }
}

/** Returns the precisions at this time: `60s 60 120 -`, or of a calendar `day START-END 31 DATE/`. */
const precisionsAt = ({ windows, keep = [], time_zone }: Settings, at: number): string[] =>
  windows.map(([label, slices]: [string, number]) => {
    const { start, end, name } = slice(label, time_zone, at);
    const prefix = keep.length > 1 ? `${label}/${name}/` : `${name}/`;
    return `${label} ${name === '*' ? end - start : `${start}-${end}`} ${slices} ${keep.includes(label) ? prefix : '-'}`;
  });
