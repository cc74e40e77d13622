import { memo } from './words.js';

/** Counts items in one call, and returns for each its result or its error. It may sort them: the results have their order. */
type CountItems<Item, Result> = (key: number, items: Item[]) => Promise<(Result | Error)[]>;

type Waiter<Result> = { resolve(result: Result): void; reject(error: Error): void };

/** Group commit: for each key one call is in flight, and items that arrive meanwhile share the next one. */
export class Queue<Item extends object, Result> {
  private readonly waiting = new Map<number, (Item & Waiter<Result>)[]>();

  constructor(private readonly count: CountItems<Item, Result>, private readonly limit = 1000) {}

  push(key: number, item: Item): Promise<Result> {
    if (!this.waiting.has(key)) queueMicrotask(() => void this.run(key)); // items of one tick share a call
    const waiting = memo(this.waiting, key, () => []);
    return new Promise((resolve, reject) => waiting.push({ ...item, resolve, reject }));
  }

  private async run(key: number): Promise<void> {
    for (const waiting = this.waiting.get(key)!; waiting.length > 0; ) {
      const items = waiting.splice(0, this.limit);
      const results = await this.count(key, items).catch((error: Error) => items.map(() => error));
      items.forEach(({ resolve, reject }, i) => (results[i] instanceof Error ? reject(results[i]) : resolve(results[i] as Result)));
    }
    this.waiting.delete(key);
  }
}

/** Returns the items of each partition. */
export function byPartition<Item extends { partition: number }>(items: Item[]): [partition: number, items: Item[]][] {
  const groups = new Map<number, Item[]>();
  for (const item of items) memo(groups, item.partition, () => [] as Item[]).push(item);
  return [...groups];
}
