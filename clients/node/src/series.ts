import { slice, starts } from './calendar.js';
import { type Family, type Item, Queue, type Settings } from './family.js';
import { type Integer, NotCounted, checkId, checkInteger, integer, integerOf, repeated } from './values.js';

const LONGEST_NAME = 200;
const PAIRS = 100;

/** A slice of a window: its start in Unix seconds, and its count. */
export type Slice = { start: number; count: Integer };

type Hit = Item & { name: string; n: Integer };

/** A family of kind `series`: counts over time. */
export class Series {
  private readonly queue = new Queue<Hit>((partition, hits) => this.count(partition, hits), PAIRS);

  /** @internal */
  constructor(private readonly family: Family) {}

  /** Adds `n`, 1 or more, to the current slice of each window of this name. Throws as `Buffered.add`. */
  async add(name: string, n: Integer = 1): Promise<void> {
    checkId(name, LONGEST_NAME);
    checkInteger(n, 1);
    const epoch = await this.family.describe();
    integerOf(name, await this.queue.push(this.family, this.family.partition(name, epoch), { of: epoch.partitions, name, n }));
  }

  /** Returns a window of this name, such as `60s` or `day`: all its slices, the oldest first. The last one is not over. */
  async get(name: string, label: string): Promise<Slice[]> {
    checkId(name, LONGEST_NAME);
    const epoch = await this.family.describe();
    const { windows, time_zone } = epoch.settings;
    const size = windows.find(([each]: [string]) => each === label)?.[1];
    if (!size) throw new NotCounted('BADARG', `${this.family.name} has no ${label}, but ${JSON.stringify(windows)}`);
    const keys = this.family.keys(this.family.partition(name, epoch), `series:${label}:${name}`);
    const [now, text] = await this.family.read('series_get', () => ({ keys, args: [''] }));
    const pairs = String(text).matchAll(/(\d+) (\d+)/g);
    const counts = new Map([...pairs].map(([, start, count]) => [Number(start), integer(count!)]));
    const at = Math.floor(Number(now) / 1000);
    return starts(label, time_zone, size, at).map((start) => ({ start, count: counts.get(start) ?? 0 }));
  }

  private async count(partition: number, hits: Hit[]): Promise<void> {
    const { status, words } = await this.family.count('series_add', partition, hits[0]!.of, (settings, now) => {
      const precisions = precisionsAt(settings, Math.floor(now / 1000));
      const labels: string[] = settings.windows.map(([label]: [string]) => label);
      const windows = hits.flatMap(({ name }) => labels.map((label) => `series:${label}:${name}`));
      return {
        keys: this.family.keys(partition, 'open', 'schedule', 'names', 'idle', ...windows),
        args: [precisions.length, ...precisions, ...hits.flatMap(({ name, n }) => [name, String(n)])],
      };
    });
    const results = status === 'DUP' ? repeated(hits.length, words[0]) : words;
    hits.forEach((hit, i) => (hit.word = results[i]));
  }
}

/** Returns the precisions at this time: `60s 60 120 -`, or of a calendar `day START-END 31 DATE/`. */
function precisionsAt({ windows, keep = [], time_zone }: Settings, at: number): string[] {
  return windows.map(([label, slices]: [string, number]) => {
    const { start, end, name } = slice(label, time_zone, at);
    const length = name === '*' ? end - start : `${start}-${end}`;
    const prefix = keep.length > 1 ? `${label}/${name}/` : `${name}/`;
    return `${label} ${length} ${slices} ${keep.includes(label) ? prefix : '-'}`;
  });
}
