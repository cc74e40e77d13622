import { setTimeout as sleep } from 'node:timers/promises';
import { crc32 } from 'node:zlib';
import type { Call, Reply, Sender } from './call.js';
import { PROBE_MS } from './outage.js';
import { MAX_N, MAX_STEP, NO_CALENDAR, type CounterfoilError, Misconfigured, NotCounted, OutcomeUnknown, UNCONFIGURED } from './values.js';
import { type Id, memo, randomStep, textOf, unconfigured, uniqueName } from './values.js';

const REQUESTS = ['requests', 'requests_before'];
const FRESH_MS = 30_000;
/** The time in which a daemon should have configured a family that was announced, and the interval at which it takes such names. */
const [CONFIGURED_WITHIN_MS, WANTED_MS] = [3_000, 200];
const ANNOUNCE_MS = 400;
const WANTED = 'cf1:wanted';
const ATTEMPTS = 5;
/** The largest number of calls of a queue in flight. */
const IN_FLIGHT = 2;
/** The number of items up to which one call is better than two. */
const SMALL = 16;
const CAUSES: Record<string, string> = {
  EXPIRED: 'Redis no longer knows this call: it lost its memory, or the call took too long',
  MISMATCH: 'the family has changed in Redis, and an earlier send may have been counted',
  PASSED: 'another process uses the name of this caller',
};

/** The settings of a kind, as lua/README.md lists them. */
export type Settings = Record<string, any>;

/** A reply of `family_epoch` for a home, and the home's keys of calls. */
type Epoch = {
  current: string; generation: string; partitions: number; settings: Settings; ids: RegExp; fence: string[]; askedAt: number;
};

/** A request of a call: the number of its item, its name, and the generation that a job has stored before its first run, if any. */
export type Work = { item: number; name: string; epoch: string | undefined };

/** Returns a call without its caller. */
type Build = (settings: Settings) => Call;

/** A family: its keys, its epochs and its calls. */
export class Family {
  /** The last epoch of any home, however old: the number of partitions does not change while anything counts in the family. */
  known: Epoch | undefined;
  private readonly epochs = new Map<number, Epoch>();
  private readonly asking = new Map<number, Promise<Epoch>>();

  constructor(private readonly sender: Sender, readonly name: string, private readonly kind: string) {}

  keys(partition: number, ...names: string[]): string[] { return names.map((name) => `cf1:{${this.name}/${partition}}:${name}`); }

  async describe(deadline: number): Promise<Epoch> { return this.known ?? this.epoch(0, deadline); }

  /** Refuses an id that can have no row. */
  check(id: string, { ids, settings }: Epoch): void {
    if (!ids.test(id)) throw new NotCounted('BADID', `${JSON.stringify(id)} can have no row, expected ${settings.ids_in_words}`);
  }

  /** Returns the partition of an id, which can have a row. In a wide family it is that of `request`, or any. */
  partition(id: string, epoch: Epoch, request?: string): number {
    this.check(id, epoch);
    const { partitions, settings } = epoch;
    return crc32(settings.wide ? (request ?? String(Math.random())) : id) % partitions;
  }

  /** Returns the partition that remembers the callers of calls in this one. */
  home(partition: number): number { return this.sender.redis.isCluster ? partition : 0; }

  get isClosing(): boolean { return this.sender.isClosing; }

  checkOpen(): void { this.sender.checkOpen(); }

  deadline(): number { return this.sender.deadline(); }

  deadlineOfRead(): number { return this.sender.deadlineOfRead(); }

  /** Counts items in a call that is executed once, and returns its reply, `OK` or `DUP`. The home of `partition` remembers it. */
  async count(script: string, partition: number, items: Item[], build: Build): Promise<Reply> {
    const { callers, redis } = this.sender;
    const home = this.home(partition);
    const { of } = items[0]!;
    const until = Math.min(...items.map((item) => item.until));
    const work = requestsOf(items);
    for (let attempt = 1; ; attempt += 1) {
      const { current, generation, partitions, settings, fence } = await this.epoch(home, until);
      if (partitions !== of) { // the reconciler may not drain the partition that was chosen
        throw new Misconfigured('MISMATCH', `${this.name} has ${partitions} partitions now, not ${of}`);
      }
      const call = build(settings);
      const caller = callers.pop() ?? { name: uniqueName(), n: 0 };
      caller.n += randomStep();
      call.keys = [...fence, ...call.keys, ...(work.length > 0 ? this.keys(home, ...REQUESTS) : [])];
      const requests = work.flatMap(({ item, name, epoch }) => [item, name, epoch ?? generation]);
      call.args = [caller.name, caller.n, current, '', ...call.args, ...requests];
      const reply = await this.sender.send(script, call, true, until);
      const { status, isRepeat } = reply;
      if (status !== 'PASSED' && caller.n <= MAX_N - MAX_STEP) callers.push(caller);
      if (status === 'OK' || status === 'DUP') return reply;
      if (status === 'EXPIRED' || status === 'MISMATCH') this.epochs.delete(home);
      const isEnded = status === 'EXPIRED' && redis.closeOwn && !isRepeat;
      const isHarmless = isEnded || (status === 'MISMATCH' && !isRepeat);
      if (!isHarmless || attempt === ATTEMPTS) throw new OutcomeUnknown(status, CAUSES[status] ?? 'an unexpected reply');
    }
  }

  /** Makes a call that may be executed any number of times, and returns the words after `OK`. */
  async read(script: string, call: Call, deadline: number): Promise<unknown[]> {
    const { status, words } = await this.sender.send(script, call, false, deadline);
    if (status === 'OK') return words;
    throw new NotCounted(status, `${script} of ${this.name}`, undefined, status === NO_CALENDAR);
  }

  /** Makes a read that needs the settings at the home of a partition's calls, and returns the words after `OK`. */
  async readOfHome(script: string, partition: number, keys: string[], arg: string | number, deadline: number): Promise<unknown[]> {
    const home = this.home(partition);
    const call: Call = { keys: [...this.keys(home, 'calls'), ...keys], args: [arg, ''] };
    return this.read(script, call, deadline).catch(async (error: CounterfoilError) => {
      if (error.reason !== 'MISMATCH') throw error;
      await this.ask(home, deadline); // Redis was emptied, or the settings have changed
      return this.read(script, call, deadline);
    });
  }

  /** Forgets the epoch of a home: Redis has another generation of requests. */
  forget(home: number): void { this.epochs.delete(home); }

  /** Returns the generation of requests. Redis is asked each time, since a job that runs later needs the one of now. */
  async requestEpoch(request: Id, id: Id): Promise<string> {
    const [name, counter] = [textOf(request, 64), textOf(id)];
    const deadline = this.deadline();
    const partition = this.partition(counter, await this.describe(deadline), name);
    return (await this.ask(this.home(partition), deadline)).generation;
  }

  /** Returns an epoch of this home that was asked for within 30 s. */
  epoch(home: number, deadline: number): Epoch | Promise<Epoch> {
    const epoch = this.epochs.get(home);
    if (epoch && performance.now() < epoch.askedAt + FRESH_MS) return epoch;
    return memo(this.asking, home, () => this.ask(home, deadline).finally(() => this.asking.delete(home)));
  }

  /** Asks Redis for the epoch of this home. If no daemon has configured the family, announces it and waits for a while. */
  async ask(home: number, deadline: number): Promise<Epoch> {
    const fence = this.keys(home, 'calls', 'calls_before');
    const outage = this.sender.outageOfFamily(fence[0]!, () => this.isConfigured(home));
    const begun = performance.now();
    for (const until = Math.min(begun + CONFIGURED_WITHIN_MS, deadline); ; await sleep(WANTED_MS)) {
      this.checkOpen();
      if (outage.error) throw outage.error;
      const askedAt = performance.now();
      const { status, words } = await this.question(home, deadline);
      const [first = '', second = '', , partitions, description = '{}'] = words.map(String);
      if (status === 'OK') {
        const settings: Settings = JSON.parse(description);
        const ids = new RegExp(`^(?:${settings.ids})$`, 'u');
        this.known = { current: first, generation: second, partitions: Number(partitions), settings, ids, fence, askedAt };
        this.epochs.set(home, this.known);
        return this.known;
      }
      if (status === UNCONFIGURED) {
        if (first) throw new Misconfigured(status, `the daemon refuses ${this.name}: ${first}`);
        const hint = await this.announce();
        if (performance.now() + WANTED_MS < until) continue;
        outage.begin(UNCONFIGURED, unconfigured(this.name, hint).text, begun);
        throw unconfigured(this.name, hint);
      }
      const before = this.known?.partitions;
      this.known = undefined;
      this.epochs.clear();
      const difference = first === this.kind ? `has ${second} partitions now, not ${before}` : `is ${first}, not ${this.kind}`;
      throw new Misconfigured(status, `${this.name} ${difference}`);
    }
  }

  private question(home: number, deadline: number): Promise<Reply> {
    const keys = this.keys(home, 'calls', 'calls_before', ...REQUESTS);
    return this.sender.send('family_epoch', { keys, args: [this.kind, this.known?.partitions ?? '', '', ''] }, false, deadline);
  }

  /** Announces the family and asks for it once more. Returns whether calls should ask again. */
  private async isConfigured(home: number): Promise<boolean> {
    await this.announce();
    const asked = this.question(home, performance.now() + PROBE_MS);
    return asked.then(({ status, words }) => status !== UNCONFIGURED || String(words[0]) !== '', () => false);
  }

  /** Announces the family to the daemon, whose configuration may have a pattern for it. Returns why that failed, or `''`. */
  private async announce(): Promise<string> {
    try {
      const call = { keys: [WANTED], args: [this.name] };
      const { status } = await this.sender.send('family_want', call, false, performance.now() + ANNOUNCE_MS);
      return status === 'OK' ? '' : `it was not asked for: ${WANTED} is full`;
    } catch (error) {
      return `it was not asked for: ${(error as Error).message}`;
    }
  }
}

/**
 * An item to count. `of` is the number of partitions when its own was chosen, `until` when its call ends at the latest. `word` is
 * what the script returned for it.
 */
export type Item = { of: number; until: number; request?: Request; word?: unknown };

/** The name of a request, and the generation that a job has stored with it. */
export type Request = { name: string; epoch: string | undefined };

/** Returns the requests of items, which are in the order of the call. */
export const requestsOf = (items: Item[]): Work[] =>
  items.flatMap(({ request }, i) => (request ? [{ item: i + 1, ...request }] : []));

/** Sets the words of items. After EXPIRED the next request asks Redis for its generation. */
export function setWords(family: Family, home: number, items: Item[], words: unknown[]): void {
  items.forEach((item, i) => (item.word = words[i]));
  if (words.includes('EXPIRED')) family.forget(home);
}

/** A function that counts items in one call, and sets the word of each. */
type Count<Some> = (key: number, items: Some[]) => Promise<unknown>;

/** An item that waits for a call, and the functions that notify its caller. */
type Waiting<Some> = { item: Some; resolve(word: unknown): void; reject(error: unknown): void };

/** The items of a key: those that wait for a call, and the numbers of calls and of items in flight. */
type Line<Some> = { waiting: Waiting<Some>[]; calls: number; inFlight: number };

/**
 * Group commit: for each key and number of partitions two calls are in flight, so that Redis executes one while the callers of
 * the other count again. Items that arrive meanwhile share the next call.
 */
export class Queue<Some extends Item> {
  private readonly lines = new Map<string, Line<Some>>();

  constructor(private readonly count: Count<Some>, private readonly limit = 1000) {}

  /** Counts the item, and returns its word. */
  push(key: number, item: Some): Promise<unknown> {
    const line = memo(this.lines, `${key}/${item.of}`, () => ({ waiting: [], calls: 0, inFlight: 0 }) as Line<Some>);
    return new Promise((resolve, reject) => {
      line.waiting.push({ item, resolve, reject });
      if (line.waiting.length === 1) queueMicrotask(() => this.fill(key, line)); // items of one tick share a call
    });
  }

  /** Makes the calls that may be in flight. */
  private fill(key: number, line: Line<Some>): void {
    while (line.calls < IN_FLIGHT && line.waiting.length > 0) {
      const share = Math.ceil((line.waiting.length + line.inFlight) / IN_FLIGHT);
      void this.call(key, line, line.waiting.splice(0, Math.min(Math.max(share, SMALL), this.limit)));
    }
  }

  private async call(key: number, line: Line<Some>, sent: Waiting<Some>[]): Promise<void> {
    line.calls += 1;
    line.inFlight += sent.length;
    try {
      await this.count(key, sent.map(({ item }) => item));
      for (const { item, resolve } of sent) resolve(item.word);
    } catch (error) {
      for (const { reject } of sent) reject(error);
    }
    line.calls -= 1;
    line.inFlight -= sent.length;
    this.fill(key, line);
  }
}
