import { setTimeout as sleep } from 'node:timers/promises';
import { Activity } from './activity.js';
import { Buffered, type Pair } from './buffered.js';
import { Cached, type ReadRow } from './cached.js';
import { Sender } from './call.js';
import { Family } from './family.js';
import { Later, type OnError } from './later.js';
import { type Address, type ConnectionOptions, type Redis, type RedisClient, connect, timesOf, wrap } from './redis.js';
import { Series, type Slice } from './series.js';
import { Daemons, type Fallback, type Fallbacks } from './value.js';
import { CounterfoilError, Misconfigured, NotCounted, OutcomeUnknown, memo } from './values.js';
import type { Bytes, Id, Integer } from './values.js';
import { Visitors } from './visitors.js';

export { CounterfoilError, Misconfigured, NotCounted, OutcomeUnknown };
export type { Activity, Address, Buffered, Bytes, Cached, Fallback, Fallbacks, Id, Integer, OnError };
export type { Pair, ReadRow, RedisClient, Series, Slice, Visitors };

/** The time for which `close` sends sums, and the pause between attempts. Closing the connection may take half a second more. */
const [END_MS, END_PAUSE_MS] = [4_500, 500];

/** Times are in milliseconds. */
export interface Options {
  /** The time limit of a call that counts, at most 30 s. A read has half of it. Defaults to 1 s. */
  retryFor?: number;
  /** The time limit of a reply, after which the call is sent again. Defaults to 400 ms, or less with a short `retryFor`. */
  timeout?: number;
  /** The time for which `later` collects before it sends. Defaults to 5 ms. */
  laterEvery?: number;
  /** Receives each sum of `later` that was not counted, with the family's full name. Without it a warning is emitted. */
  onError?: OnError;
  /**
   * The URL of the daemon, such as `http://127.0.0.1:9292`, or those of several: for exact values, and for rows of cached
   * counters. The next one is asked if one is unreachable or busy.
   */
  daemon?: string | readonly string[];
  /** The daemon's token. */
  token?: string;
}

export type ConnectOptions = Options & ConnectionOptions;

/** The families of a namespace in a Redis. A process has one for its lifetime. */
export class Counterfoil {
  /** @internal */
  protected sender: Sender;
  /** @internal */
  protected daemons: Daemons;
  private readonly families = new Map<string, unknown>();
  private readonly held = new Set<Promise<unknown>>();

  /** Counts over the application's client of ioredis or node-redis, standalone or cluster. Throws `Misconfigured`. */
  constructor(redis: RedisClient | Redis, private readonly namespace: string, private readonly options: Options = {}) {
    const { retryFor, timeout } = timesOf(options);
    this.sender = new Sender(wrap(redis), timeout, retryFor);
    this.daemons = new Daemons(options.daemon, options.token, retryFor);
  }

  /**
   * Connects to a URL, the path of a Unix socket, or a cluster by `host:port` or `rediss://host:port` of some nodes. `close` ends
   * the connection.
   */
  static async connect(address: Address, namespace: string, options: ConnectOptions = {}): Promise<Counterfoil> {
    return new Counterfoil(await connect(address, options), namespace, options);
  }

  /** Sums of deltas. */
  buffered(name: string): Buffered {
    return this.open('buffered', name, (family) => new Buffered(family, this.daemons, this.options));
  }

  /** Values in bounds, which changes return. A family has one `readRow`: that of the last call with one. */
  cached(name: string, { readRow }: { readRow?: ReadRow } = {}): Cached {
    const cached = this.open('cached', name, (family) => new Cached(family, this.daemons));
    if (readRow) cached.readRow = readRow;
    return cached;
  }

  /** Counts over time. */
  series(name: string): Series { return this.open('series', name, (family) => new Series(family, this.options)); }

  /** Views and visitors of the last minutes of a page. */
  activity(name: string): Activity { return this.open('activity', name, (family) => new Activity(family, this.options)); }

  /** Visitors who count once a day. */
  visitors(name: string): Visitors {
    return this.open('visitors', name, (family) => new Visitors(family, this.daemons, this.options));
  }

  /** Sends what `later` took in all families, and throws the first error of what was not counted. Waits for `retryFor` at most. */
  async flush(): Promise<void> {
    this.sender.checkOpen();
    await allOf(this.laters().map((family) => family.flush()));
  }

  /**
   * Sends what `later` took, and ends the connection if `connect` made it. While Redis is unreachable it tries again for 5 s; then
   * `onError` receives what is left, and the first error is thrown. Later calls are refused as `CLOSED`.
   */
  async close(): Promise<void> {
    const until = performance.now() + END_MS;
    this.sender.endAt(until);
    const late = new AbortController();
    await Promise.race([Promise.allSettled(this.held), sleep(END_MS, undefined, { signal: late.signal })]);
    late.abort();
    const laters = this.laters();
    const send = () => Promise.all(laters.map((family) => family.send()));
    await send();
    while (laters.some((family) => family.isWaiting) && performance.now() < until) {
      await sleep(Math.min(END_PAUSE_MS, until - performance.now()));
      await this.sender.retryOutages();
      await send();
    }
    const ends = allOf(laters.map((family) => family.close()));
    await ends.finally(() => this.sender.close());
  }

  /** @internal Makes `close` wait for a view that is being counted. */
  async hold<T>(view: Promise<T>): Promise<T> {
    this.held.add(view);
    return view.finally(() => this.held.delete(view));
  }

  private laters(): Later<unknown>[] { return [...this.families.values()].filter((family) => family instanceof Later); }

  /** Returns the family's object. There is one, so that all callers share its calls. */
  private open<T>(kind: string, name: string, open: (family: Family) => T): T {
    const full = `${this.namespace}/${name}`;
    const isName = /^[a-z0-9_.-]{1,64}\/[a-z0-9_.-]{1,64}$/.test(full);
    if (!isName) throw new Misconfigured('NAME', `expected names of 1 to 64 of a-z, 0-9, _, . and -, not ${full}`);
    return memo(this.families, `${kind} ${name}`, () => open(new Family(this.sender, full, kind))) as T;
  }
}

/** Waits for all, and throws the first error. */
async function allOf(all: Promise<unknown>[]): Promise<void> {
  for (const end of await Promise.allSettled(all)) if (end.status === 'rejected') throw end.reason;
}
