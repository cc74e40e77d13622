import { crc32 } from 'node:zlib';
import { type Family, type Item, Queue } from './family.js';
import { Later, type LaterOptions } from './later.js';
import { type Bytes, type Id, type Integer, NotCounted } from './values.js';
import { integerOf, keyOf, memo, repeated, textOf, upTo, visitorOf } from './values.js';

const LONGEST_PAGE = 200;
const ATTEMPTS = 5;
const OUTDATED = 'pages have another number of stripes now';

/** A page, and a visitor who views it. */
type View = { page: string; visitor: Bytes };

/** Views of one visitor. They count in the `stripe` of the page, of which it had `stripes` when this one was chosen. */
type Touch = Item & View & { stripe: number; stripes: number; views: Integer };

/** A family of kind `activity`: who is on a page now. */
export class Activity extends Later<View> {
  private readonly queue = new Queue<Touch>((partition, touches) => this.count(partition, touches));

  /** @internal */
  constructor(family: Family, options: LaterOptions) { super(family, options); }

  /** Counts a view of the page, and notes its visitor. Throws as `Buffered.add`. */
  async touch(page: Id, visitor: Id | Uint8Array): Promise<void> {
    return this.countSum({ page: textOf(page, LONGEST_PAGE), visitor: visitorOf(visitor) }, 1);
  }

  /**
   * Counts a view soon, like `Buffered.later`.
   * @throws NotCounted (`BADID`, `BUSY`, `CLOSED`)
   */
  later(page: Id, visitor: Id | Uint8Array): void {
    const [name, who] = [textOf(page, LONGEST_PAGE), visitorOf(visitor)];
    if (this.family.known) this.family.check(name, this.family.known);
    this.keep(`${name.length}:${name}${keyOf(who)}`, { page: name, visitor: Buffer.from(who) }, 1);
  }

  /** Returns the views and distinct visitors of the page. */
  async now(page: Id): Promise<{ views: number; visitors: number }> {
    const [name, deadline] = [textOf(page, LONGEST_PAGE), this.family.deadlineOfRead()];
    const epoch = await this.family.describe(deadline);
    this.family.check(name, epoch);
    const { settings: { stripes }, partitions } = epoch;
    const places = await Promise.all(upTo(stripes).map((stripe) => {
      const partition = (crc32(name) + stripe) % partitions;
      return this.family.readOfHome('activity_now', partition, this.keys(partition, stripe, name), stripes, deadline);
    }));
    const sum = (i: number) => places.reduce((sum, words) => sum + Number(words[i]), 0);
    return { views: sum(0), visitors: sum(1) };
  }

  /** @internal */
  protected async countSum({ page, visitor }: View, views: Integer): Promise<void> {
    const until = this.family.deadline();
    for (let attempt = 1; ; attempt += 1) {
      const epoch = await this.family.describe(until);
      this.family.check(page, epoch);
      const { settings: { stripes }, partitions: of } = epoch;
      const stripe = crc32(visitor) % stripes;
      const partition = (crc32(page) + stripe) % of;
      try {
        integerOf(page, await this.queue.push(partition, { of, until, page, visitor, stripe, stripes, views }));
        return;
      } catch (error) { // the number of stripes has changed, so the visitor belongs to another one now
        if (!(error instanceof NotCounted && error.text === OUTDATED) || attempt === ATTEMPTS) throw error;
      }
    }
  }

  /** @internal */
  protected idOf({ page }: View): string { return page; }

  private keys(partition: number, stripe: number, page: string): string[] {
    return this.family.keys(partition, `views:${stripe}:${page}`, `visitors:${stripe}:${page}`);
  }

  private async count(partition: number, touches: Touch[]): Promise<void> {
    const places = new Map<string, Touch[]>();
    for (const touch of touches) memo(places, `${touch.stripe}:${touch.page}`, () => [] as Touch[]).push(touch);
    const groups = [...places.values()];
    const { status, words } = await this.family.count('activity_touch', partition, touches, ({ stripes }) => {
      if (touches.some((touch) => touch.stripes !== stripes)) throw new NotCounted('MISMATCH', OUTDATED, undefined, true);
      const own = groups.flatMap(([first]) => this.keys(partition, first!.stripe, first!.page));
      return {
        keys: [...this.family.keys(partition, 'buffer', 'meta'), ...own],
        args: [stripes, groups.length, ...groups.flatMap(placeOf)],
      };
    });
    const results = status === 'DUP' ? repeated(groups.length, words[0]) : words.slice(1); // without the total in front
    groups.forEach((group, i) => group.forEach((touch) => (touch.word = results[i])));
  }
}

/** Returns the arguments of views in one stripe of a page: the page, the views and the visitors. */
function placeOf(touches: Touch[]): (Bytes | number)[] {
  const views = touches.reduce((sum, touch) => sum + BigInt(touch.views), 0n);
  return [touches[0]!.page, String(views), touches.length, ...touches.map(({ visitor }) => visitor)];
}
