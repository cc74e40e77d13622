import { crc32 } from 'node:zlib';
import { type Family, type Settings, byPartition } from './family.js';
import { type Bytes, checkId, checkVisitor, upTo } from './values.js';

const LONGEST_PAGE = 200;
/** How many places a call reads at most. */
const PLACES = 100;

/** A family of kind `activity`: who is on a page now. */
export class Activity {
  /** @internal */
  constructor(private readonly family: Family) {}

  /** Counts a view of the page, and notes its visitor. Throws as `Buffered.add`. */
  async touch(page: string, visitor: Bytes): Promise<void> {
    checkId(page, LONGEST_PAGE);
    checkVisitor(visitor);
    const { settings, partitions } = await this.family.describe();
    const stripe = crc32(visitor) % settings.stripes;
    const partition = (crc32(page) + stripe) % partitions;
    await this.family.count(`activity_touch${suffix(settings)}`, partition, (own, now) => {
      const { layers, current, window, estimate } = windowAt(own, now);
      const minute = `minute:${Math.floor((current * own.layer) / 60_000) * 60}:${stripe}:${page}`;
      const names = ['open', 'schedule', ...place(own, stripe, page, layers.slice(-1)), ...(own.keep_minutes && suffix(own) ? [minute] : [])];
      return [this.family.keys(partition, ...names), [...window, own.keep_minutes ? 1 : 0, ...estimate, 1, page, 1, 1, visitor]];
    });
  }

  /** Returns the views and distinct visitors of the page; with `hyperloglog` visitors are an estimate, by 0.81 %. */
  async now(page: string): Promise<{ views: number; visitors: number }> {
    checkId(page, LONGEST_PAGE);
    const { settings, partitions } = await this.family.describe();
    const stripes = upTo(settings.stripes).map((stripe) => ({ stripe, partition: (crc32(page) + stripe) % partitions }));
    const calls = byPartition(stripes).flatMap(([partition, group]) => upTo(Math.ceil(group.length / PLACES)).map((part) => {
      const places = group.slice(part * PLACES, (part + 1) * PLACES);
      return this.family.read(`activity_now${suffix(settings)}`, (own, now) => {
        const { layers, window, estimate } = windowAt(own, now);
        return [this.family.keys(partition, ...places.flatMap(({ stripe }) => place(own, stripe, page, layers))), ['', ...window, ...estimate]];
      });
    }));
    const words = (await Promise.all(calls)).flat().map(Number);
    const sum = (odd: number) => words.reduce((sum, word, i) => sum + (i % 2 === odd ? word : 0), 0);
    return { views: sum(0), visitors: sum(1) };
  }
}

const suffix = ({ visitors }: Settings): string => (visitors === 'hyperloglog' ? '_hll' : '');

/** Returns the keys of a place, one stripe of one page. */
const place = (settings: Settings, stripe: number, page: string, layers: number[]): string[] =>
  [`views:${stripe}:${page}`, ...(suffix(settings) ? layers.map((layer) => `layer:${layer}:${stripe}:${page}`) : [`visitors:${stripe}:${page}`])];

/** Returns the layers of the window and what scripts are given of it. */
function windowAt(settings: Settings, now: number): { layers: number[]; current: number; window: number[]; estimate: number[] } {
  const [current, count] = [Math.floor(now / settings.layer), settings.window / settings.layer];
  const layers = upTo(count).map((i) => current - count + 1 + i);
  return { layers, current, window: [settings.layer, count], estimate: suffix(settings) ? [current] : [] };
}
