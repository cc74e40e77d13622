import { crc32 } from 'node:zlib';
import type { Family, Settings } from './family.js';
import { type Bytes, checkId, upTo } from './values.js';

const LONGEST_PAGE = 200;

/** A family of kind `activity`: who is on a page now. */
export class Activity {
  /** @internal */
  constructor(private readonly family: Family) {}

  /** Counts a view of the page, and notes its visitor. Throws as `Buffered.add`. */
  async touch(page: string, visitor: Bytes): Promise<void> {
    checkId(page, LONGEST_PAGE);
    checkId(visitor);
    const { settings, partitions } = await this.family.describe();
    const stripe = crc32(visitor) % settings.stripes;
    const partition = (crc32(page) + stripe) % partitions;
    await this.family.count(`activity_touch${suffix(settings)}`, partition, partitions, (own, now) => {
      const { current, length, estimate } = windowAt(own, now);
      const minute = `minute:${Math.floor((current * own.layer) / 60_000) * 60}`;
      const names = ['views', ...sets(own, [current]), ...(own.keep_minutes && suffix(own) ? [minute] : [])];
      const keys = ['open', 'schedule', ...names.map((name) => `${name}:${stripe}:${page}`)];
      const args = [own.layer, length, own.keep_minutes ? 1 : 0, ...estimate, 1, page, 1, 1, visitor];
      return { keys: this.family.keys(partition, ...keys), args };
    });
  }

  /** Returns the views and distinct visitors of the page; with `hyperloglog` visitors are an estimate, by 0.81 %. */
  async now(page: string): Promise<{ views: number; visitors: number }> {
    checkId(page, LONGEST_PAGE);
    const { settings } = await this.family.describe();
    const stripes = await Promise.all(upTo(settings.stripes).map((stripe) => this.stripeNow(page, stripe)));
    const sum = (i: number) => stripes.reduce((sum, words) => sum + Number(words[i]), 0);
    return { views: sum(0), visitors: sum(1) };
  }

  private async stripeNow(page: string, stripe: number): Promise<unknown[]> {
    const { settings, partitions } = await this.family.describe();
    return this.family.read(`activity_now${suffix(settings)}`, (own, now) => {
      const { current, length, estimate } = windowAt(own, now);
      const layers = upTo(length).map((i) => current - length + 1 + i);
      const names = ['views', ...sets(own, layers)].map((name) => `${name}:${stripe}:${page}`);
      const keys = this.family.keys((crc32(page) + stripe) % partitions, ...names);
      return { keys, args: ['', own.layer, length, ...estimate] };
    });
  }
}

/** Returns what names of scripts end with in families whose visitors are estimates. */
const suffix = ({ visitors }: Settings): string => (visitors === 'hyperloglog' ? '_hll' : '');

/** Returns the names of the keys with visitors: one, or an estimate for each layer. */
const sets = (settings: Settings, layers: number[]): string[] =>
  suffix(settings) ? layers.map((layer) => `layer:${layer}`) : ['visitors'];

/** Returns the current layer, how many a window has, and what scripts of estimates are also given. */
function windowAt(settings: Settings, now: number): { current: number; length: number; estimate: number[] } {
  const current = Math.floor(now / settings.layer);
  return { current, length: settings.window / settings.layer, estimate: suffix(settings) ? [current] : [] };
}
