import { crc32 } from 'node:zlib';
import type { Family } from './family.js';
import { type Bytes, NotCounted, checkId, integerOf, repeated, upTo } from './values.js';

const LONGEST_PAGE = 200;
const ATTEMPTS = 5;
const OUTDATED = 'pages have another number of stripes now';

/** A family of kind `activity`: who is on a page now. */
export class Activity {
  /** @internal */
  constructor(private readonly family: Family) {}

  /** Counts a view of the page, and notes its visitor. Throws as `Buffered.add`. */
  async touch(page: string, visitor: Bytes): Promise<void> {
    checkId(page, LONGEST_PAGE);
    checkId(visitor);
    for (let attempt = 1; ; attempt += 1) {
      const epoch = await this.family.describe();
      this.family.check(page, epoch);
      const { settings: { stripes }, partitions } = epoch;
      const stripe = crc32(visitor) % stripes;
      const partition = (crc32(page) + stripe) % partitions;
      const keys = this.family.keys(partition, 'buffer', 'meta', `views:${stripe}:${page}`, `visitors:${stripe}:${page}`);
      try {
        const { status, words } = await this.family.count('activity_touch', partition, partitions, (settings) => {
          if (settings.stripes !== stripes) throw new NotCounted('MISMATCH', OUTDATED, undefined, true);
          return { keys, args: [stripes, 1, page, 1, 1, visitor] };
        });
        integerOf(page, status === 'DUP' ? repeated(1, words[0])[0] : words[1]);
        return;
      } catch (error) { // the visitor belongs to another stripe now
        if (!(error instanceof NotCounted && error.message.includes(OUTDATED)) || attempt === ATTEMPTS) throw error;
      }
    }
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
    const { settings, partitions } = await this.family.describe();
    const partition = (crc32(page) + stripe) % partitions;
    const keys = this.family.keys(partition, `views:${stripe}:${page}`, `visitors:${stripe}:${page}`);
    return this.family.readOfHome('activity_now', partition, [], keys, settings.stripes);
  }
}
