import type { Family, Settings } from './family.js';
import { byPartition } from './queue.js';
import { type Bytes, checkId, checkVisitor, crc32 } from './words.js';

const LONGEST_PAGE = 200;

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
    await this.family.count(script('touch', settings), partition, (_, now) => {
      const { layer, keep_minutes: keeps } = settings;
      const current = Math.floor(now / layer);
      const minute = Math.floor((current * layer) / 60_000) * 60;
      const estimated = [`layer:${current}:${stripe}:${page}`, ...(keeps ? [`minute:${minute}:${stripe}:${page}`] : [])];
      const names = isEstimated(settings) ? estimated : [`visitors:${stripe}:${page}`];
      const window = [layer, settings.window / layer, keeps ? 1 : 0, ...(isEstimated(settings) ? [current] : [])];
      return [this.family.keys(partition, 'open', 'schedule', `views:${stripe}:${page}`, ...names), [...window, 1, page, 1, 1, visitor]];
    });
  }

  /** Returns the views and distinct visitors of the page; with `hyperloglog` visitors are an estimate, by 0.81 %. */
  async now(page: string): Promise<{ views: number; visitors: number }> {
    checkId(page, LONGEST_PAGE);
    const { settings, partitions } = await this.family.describe();
    const stripes = Array.from({ length: settings.stripes }, (_, stripe) => ({ stripe, partition: (crc32(page) + stripe) % partitions }));
    const calls = byPartition(stripes).map(([partition, places]) => this.family.read(script('now', settings), (_, now) => {
      const [layers, current] = [settings.window / settings.layer, Math.floor(now / settings.layer)];
      const names = places.flatMap(({ stripe }) => {
        const layer = (i: number) => `layer:${current - layers + 1 + i}:${stripe}:${page}`;
        return [`views:${stripe}:${page}`, ...(isEstimated(settings) ? Array.from({ length: layers }, (_, i) => layer(i)) : [`visitors:${stripe}:${page}`])];
      });
      return [this.family.keys(partition, ...names), ['', settings.layer, layers, ...(isEstimated(settings) ? [current] : [])]];
    }));
    const words = (await Promise.all(calls)).flat();
    const sum = (odd: number) => words.reduce<number>((sum, word, i) => sum + (i % 2 === odd ? Number(word) : 0), 0);
    return { views: sum(0), visitors: sum(1) };
  }
}

function isEstimated({ visitors }: Settings): boolean {
  return visitors === 'hyperloglog';
}

function script(call: string, settings: Settings): string {
  return `activity_${call}${isEstimated(settings) ? '_hll' : ''}`;
}
