import { crc32 } from 'node:zlib';
import type { Family } from './family.js';
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
    const epoch = await this.family.describe();
    this.family.check(page, epoch);
    const { settings, partitions } = epoch;
    const stripe = crc32(visitor) % settings.stripes;
    const partition = (crc32(page) + stripe) % partitions;
    await this.family.count('activity_touch', partition, partitions, (own) => {
      const names = ['open', 'schedule', `views:${stripe}:${page}`, `visitors:${stripe}:${page}`];
      const args = [own.layer, own.window / own.layer, own.keep_minutes ? 1 : 0, 1, page, 1, 1, visitor];
      return { keys: this.family.keys(partition, ...names), args };
    });
  }

  /** Returns the views and distinct visitors of the page. */
  async now(page: string): Promise<{ views: number; visitors: number }> {
    checkId(page, LONGEST_PAGE);
    const epoch = await this.family.describe();
    this.family.check(page, epoch);
    const { settings } = epoch;
    const stripes = await Promise.all(upTo(settings.stripes).map((stripe) => this.stripeNow(page, stripe)));
    const sum = (i: number) => stripes.reduce((sum, words) => sum + Number(words[i]), 0);
    return { views: sum(0), visitors: sum(1) };
  }

  private async stripeNow(page: string, stripe: number): Promise<unknown[]> {
    const { partitions } = await this.family.describe();
    return this.family.read('activity_now', ({ layer, window }) => {
      const names = [`views:${stripe}:${page}`, `visitors:${stripe}:${page}`];
      return { keys: this.family.keys((crc32(page) + stripe) % partitions, ...names), args: ['', layer, window / layer] };
    });
  }
}
