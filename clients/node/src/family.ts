import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { crc32 } from 'node:zlib';
import type { Call, Reply, Sender } from './call.js';
import { type Bytes, Misconfigured, NotCounted, OutcomeUnknown, memo } from './values.js';

const FRESH_MS = 30_000;
const HINT = `is not configured in this Redis: check the name, the server and the database number, or declare it in the daemon's
counterfoil.toml (\`counterfoil init\` creates the tables) and start the daemon`;
/** How long the daemon may take to configure an emptied Redis again. */
const EMPTIED_MS = 3_000;
const ATTEMPTS = 5;
const UNKNOWN = 'EXPIRED: Redis lost its memory, or the call took too long; PASSED: a caller name is used twice';

/** The settings of a kind, as lua/README.md lists them. */
export type Settings = Record<string, any>;

/** What `family_epoch` returned. */
type Epoch = { current: string; before: string; partitions: number; settings: Settings; askedAt: number };

/** Work that may be run again: a caller's name for it, and the epoch before its first run. */
type Work = { name: string; epoch: string };

/** Returns a call without its caller, at this time of the server. */
type Build = (settings: Settings, now: number) => Call;

/** How far the clock of Redis is ahead of this process's monotonic one, in milliseconds, as far as it has mattered. */
let ahead = performance.timeOrigin;

/** A family: its keys, its epochs and its calls. */
export class Family {
  /** What is known of the family, of any age: it keeps its partitions as long as anything counts in it. */
  known: Epoch | undefined;
  private readonly epochs = new Map<number, Epoch>();
  private readonly asking = new Map<number, Promise<Epoch>>();

  constructor(private readonly sender: Sender, readonly name: string, private readonly kind: string) {}

  keys(partition: number, ...names: string[]): string[] { return names.map((name) => `cf1:{${this.name}/${partition}}:${name}`); }

  async describe(): Promise<Epoch> { return this.known ?? this.epoch(0); }

  partition(id: Bytes, { partitions, settings }: Epoch): number {
    return settings.wide ? Math.floor(Math.random() * partitions) : crc32(id) % partitions;
  }

  /** Returns the partition that remembers the callers of calls in this one. */
  home(partition: number): number { return this.sender.redis.isCluster ? partition : 0; }

  deadline(): number { return performance.now() + this.sender.retryFor; }

  /** Makes a call that may be executed any number of times, and returns the words after `OK`. */
  async read(script: string, build: Build): Promise<unknown[]> { return (await this.count(script, 0, build, undefined, false)).words; }

  /** Makes a call that is executed once, and returns its reply, `OK` or `DUP`. Its home is that of `partition`. */
  async count(script: string, partition: number, build: Build, work?: Work, counts = true): Promise<Reply> {
    const { callers, redis } = this.sender;
    const [home, deadline] = [this.home(partition), this.deadline()];
    for (let attempt = 1, lost = false; ; attempt += 1) {
      const { current, before, settings } = await this.epoch(home, deadline).catch((error) => {
        throw lost ? new OutcomeUnknown('no epoch', error.message, error) : error;
      });
      if (work && work.epoch !== current && work.epoch !== before) throw new OutcomeUnknown('EXPIRED', UNKNOWN);
      const caller = work ? { name: work.name, n: 0 } : (callers.pop() ?? { name: randomBytes(8).toString('hex'), n: 0 });
      const [keys, args] = build(settings, performance.now() + ahead);
      const fence = [caller.name, (caller.n += 1), work ? before : current, ''];
      const call: Call = counts ? [[...this.homeKeys(home), ...keys], [...fence, ...args]] : [keys, args];
      const reply = await this.sender.send(script, call, counts, deadline, lost);
      const { status, isRepeat } = reply;
      lost = isRepeat;
      if (!isRepeat && !work) callers.push(caller); // else an arrival of this call may still be on its way
      if (status === 'OK' || status === 'DUP') return reply;
      if (status === 'EXPIRED') this.epochs.delete(home);
      if (status === 'OUTSIDE') ahead = Number(reply.words[0]) - performance.now();
      const isHarmless = status === 'OUTSIDE' ? !isRepeat : status === 'EXPIRED' && (work || (redis.closeOwn && !isRepeat));
      if (!isHarmless || attempt === ATTEMPTS) throw new OutcomeUnknown(status, UNKNOWN);
    }
  }

  /** Returns an epoch of this home that was asked for within 30 s. */
  async epoch(home: number, deadline = this.deadline()): Promise<Epoch> {
    const epoch = this.epochs.get(home);
    if (epoch && performance.now() < epoch.askedAt + FRESH_MS) return epoch;
    return memo(this.asking, home, () => this.ask(home, deadline).finally(() => this.asking.delete(home)));
  }

  private homeKeys(home: number): string[] { return this.keys(home, 'calls', 'calls_before'); }

  private async ask(home: number, deadline: number): Promise<Epoch> {
    for (const emptiedUntil = performance.now() + EMPTIED_MS; ; await sleep(200)) {
      const askedAt = performance.now();
      const call: Call = [this.homeKeys(home), [this.kind, this.known?.partitions ?? '', '', '']];
      const { status, words } = await this.sender.send('family_epoch', call, false, deadline).catch((cause) => {
        const isTemporary = cause instanceof NotCounted && cause.temporary;
        throw cause instanceof Misconfigured ? cause : new NotCounted('no epoch', cause.message, cause, isTemporary); // not sent
      });
      if (status === 'OK') {
        const [current = '', before = '', , partitions, settings = '{}'] = words.map(String);
        this.known = { current, before, partitions: Number(partitions), settings: JSON.parse(settings), askedAt };
        this.epochs.set(home, this.known);
        return this.known;
      }
      if (status === 'UNCONFIGURED' && this.known && performance.now() < emptiedUntil) continue;
      this.known = undefined;
      this.epochs.clear();
      throw new Misconfigured(status, `${this.name} ${status === 'UNCONFIGURED' ? HINT : `is another family than a ${this.kind} one: ${words}`}`);
    }
  }
}

/** Counts items in one call, and returns for each its result or its error. */
type CountItems<Item, Result> = (key: number, items: Item[]) => Promise<(Result | Error)[]>;

type Waiter<Item, Result> = { item: Item; resolve(result: Result): void; reject(error: unknown): void };

/** Group commit: for each key one call is in flight, and items that arrive meanwhile share the next one. */
export class Queue<Item, Result> {
  private readonly waiting = new Map<number, Waiter<Item, Result>[]>();

  constructor(private readonly count: CountItems<Item, Result>, private readonly limit = 1000) {}

  push(key: number, item: Item): Promise<Result> {
    return new Promise((resolve, reject) => {
      if (this.waiting.get(key)?.push({ item, resolve, reject })) return;
      this.waiting.set(key, [{ item, resolve, reject }]);
      queueMicrotask(() => void this.run(key)); // items of one tick share a call
    });
  }

  private async run(key: number): Promise<void> {
    for (const waiting = this.waiting.get(key)!; waiting.length > 0; ) {
      const group = waiting.splice(0, this.limit);
      const results = await this.count(key, group.map(({ item }) => item)).catch((error: Error) => group.map(() => error));
      group.forEach(({ resolve, reject }, i) => (results[i] instanceof Error ? reject(results[i]) : resolve(results[i] as Result)));
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
