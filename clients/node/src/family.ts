import { setTimeout as sleep } from 'node:timers/promises';
import { crc32 } from 'node:zlib';
import type { Call, Reply, Sender } from './call.js';
import { MAX_N, MAX_STEP, NO_CALENDAR, type CounterfoilError, Misconfigured, NotCounted, OutcomeUnknown } from './values.js';
import { checkId, memo, randomStep, uniqueName } from './values.js';

const REQUESTS = ['requests', 'requests_before'];
const FRESH_MS = 30_000;
const HINT =
  'no daemon has configured it in this Redis: start the daemon, or declare the family in its counterfoil.toml; or its name, ' +
  'the server or the database number is wrong';
/** How long a daemon may take to configure what is wanted. */
const CONFIGURED_WITHIN_MS = 3_000;
const WANTED = 'cf1:wanted';
const ATTEMPTS = 5;
/** Calls of a queue at a time. */
const IN_FLIGHT = 2;
/** So many items at most are not worth two calls. */
const SMALL = 16;
const CAUSES: Record<string, string> = {
  EXPIRED: 'Redis no longer knows this call: it lost its memory, or the call took too long',
  MISMATCH: 'the family has changed in Redis, and an earlier send may have been counted',
  PASSED: 'another process uses the name of this caller',
};

/** The settings of a kind, as lua/README.md lists them. */
export type Settings = Record<string, any>;

/** What `family_epoch` returned for a home, and the home's keys. */
type Epoch = {
  current: string; generation: string; partitions: number; settings: Settings; ids: RegExp; fence: string[]; askedAt: number;
};

/** Work that may be run again: the number of its item in a call, its name, and the generation before its first run, if one is stored. */
export type Work = { item: number; name: string; epoch: string | undefined };

/** Returns a call without its caller. */
type Build = (settings: Settings) => Call;

/** A family: its keys, its epochs and its calls. */
export class Family {
  /** What is known of the family, of any age: it keeps its partitions as long as anything counts in it. */
  known: Epoch | undefined;
  private readonly epochs = new Map<number, Epoch>();
  private readonly asking = new Map<number, Promise<Epoch>>();

  constructor(private readonly sender: Sender, readonly name: string, private readonly kind: string) {}

  keys(partition: number, ...names: string[]): string[] { return names.map((name) => `cf1:{${this.name}/${partition}}:${name}`); }

  async describe(): Promise<Epoch> { return this.known ?? this.epoch(0); }

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

  get retryFor(): number { return this.sender.retryFor; }

  deadline(): number { return performance.now() + this.retryFor; }

  /** Makes a call that may be executed any number of times, and returns the words after `OK`. */
  async read(script: string, build: Build): Promise<unknown[]> {
    return (await this.count(script, 0, undefined, build, [], false)).words;
  }

  /**
   * Makes a call that is executed once, and returns its reply, `OK` or `DUP`. Its home is that of `partition`, one of as many
   * as `of`. One that does not `count` has no caller, and may be executed any number of times.
   */
  async count(script: string, partition: number, of: number | undefined, build: Build, work: Work[] = [], counts = true): Promise<Reply> {
    const { callers, redis } = this.sender;
    const home = this.home(partition);
    const deadline = this.deadline();
    for (let attempt = 1, lost = false; ; attempt += 1) {
      const { current, generation, partitions, settings, fence } = await this.epoch(home, deadline, lost);
      if (counts && partitions !== of) { // the reconciler may not drain the one that was chosen
        throw new (lost ? OutcomeUnknown : Misconfigured)('MISMATCH', `${this.name} has ${partitions} partitions now, not ${of}`);
      }
      const caller = callers.pop() ?? { name: uniqueName(), n: 0 };
      const call = build(settings);
      if (counts) {
        caller.n += randomStep();
        call.keys = [...fence, ...call.keys, ...(work.length > 0 ? this.keys(home, ...REQUESTS) : [])];
        const requests = work.flatMap(({ item, name, epoch }) => [item, name, epoch ?? generation]);
        call.args = [caller.name, caller.n, current, '', ...call.args, ...requests];
      }
      const reply = await this.sender.send(script, call, counts, deadline, lost);
      const { status, isRepeat } = reply;
      lost = isRepeat;
      if (status !== 'PASSED' && caller.n <= MAX_N - MAX_STEP) callers.push(caller);
      if (status === 'OK' || status === 'DUP') return reply;
      if (status === 'EXPIRED' || status === 'MISMATCH') this.epochs.delete(home);
      const isEnded = status === 'EXPIRED' && redis.closeOwn && !isRepeat;
      const isHarmless = isEnded || (status === 'MISMATCH' && !isRepeat);
      if (!isHarmless || attempt === ATTEMPTS) throw new OutcomeUnknown(status, CAUSES[status] ?? 'an unexpected reply');
    }
  }

  /** Makes a read that needs the settings at the home of a partition's calls, and returns the words after `OK`. */
  async readOfHome(script: string, partition: number, names: string[], keys: string[], arg: string | number): Promise<unknown[]> {
    const home = this.home(partition);
    const call: Call = { keys: [...this.keys(home, 'calls', ...names), ...keys], args: [arg, ''] };
    for (let attempt = 1; ; attempt += 1, await sleep(100)) {
      const { status, words } = await this.sender.send(script, call, false, this.deadline());
      if (status === 'OK') return words;
      if (status !== 'MISMATCH' || attempt === ATTEMPTS) {
        throw new NotCounted(status, `${script} ${arg} of ${this.name}`, undefined, status === NO_CALENDAR);
      }
      await this.ask(home); // Redis was emptied, or the settings have changed
    }
  }

  /** Forgets the epoch of a home: Redis has another generation of requests. */
  forget(home: number): void { this.epochs.delete(home); }

  /** Returns the generation of requests. A job that runs later needs the one that Redis has now. */
  async requestEpoch(request: string, id: string): Promise<string> {
    checkId(request, 64);
    checkId(id);
    return (await this.ask(this.home(this.partition(id, await this.describe(), request)))).generation;
  }

  /** Returns an epoch of this home that was asked for within 30 s. `lost`: a call may have been executed before. */
  epoch(home: number, deadline = this.deadline(), lost = false): Epoch | Promise<Epoch> {
    const epoch = this.epochs.get(home);
    if (epoch && performance.now() < epoch.askedAt + FRESH_MS) return epoch;
    const asked = memo(this.asking, home, () => this.ask(home, deadline).finally(() => this.asking.delete(home)));
    return asked.catch((error) => {
      throw lost ? new OutcomeUnknown('no epoch', error.message, error) : error;
    });
  }

  /** Asks Redis for the epoch of this home. */
  async ask(home: number, deadline = this.deadline()): Promise<Epoch> {
    const fence = this.keys(home, 'calls', 'calls_before');
    for (const until = Math.min(performance.now() + CONFIGURED_WITHIN_MS, deadline); ; await sleep(50)) {
      const askedAt = performance.now();
      const call: Call = { keys: [...fence, ...this.keys(home, ...REQUESTS)], args: [this.kind, this.known?.partitions ?? '', '', ''] };
      const { status, words } = await this.sender.send('family_epoch', call, false, deadline).catch((cause) => {
        throw cause.temporary ? new NotCounted('no epoch', cause.message, cause, true) : cause; // not sent
      });
      if (status === 'OK') {
        const [current = '', generation = '', , partitions, description = '{}'] = words.map(String);
        const settings: Settings = JSON.parse(description);
        const ids = new RegExp(`^(?:${settings.ids})$`, 'u');
        this.known = { current, generation, partitions: Number(partitions), settings, ids, fence, askedAt };
        this.epochs.set(home, this.known);
        return this.known;
      }
      if (status === 'UNCONFIGURED') {
        const why = await this.announce(deadline);
        if (performance.now() < until) continue;
        throw new NotCounted(status, `${this.name}: ${HINT}${why}`, undefined, true);
      }
      this.known = undefined;
      this.epochs.clear();
      throw new Misconfigured(status, `${this.name} is another family than a ${this.kind} one: ${words}`);
    }
  }

  /** Announces the family to the daemon, which may know it. Returns why that failed. */
  private async announce(deadline: number): Promise<string> {
    try {
      const { status } = await this.sender.send('family_want', { keys: [WANTED], args: [this.name] }, false, deadline);
      return status === 'OK' ? '' : `; ${WANTED} is full, since no daemon takes names`;
    } catch (error) {
      return `; the daemon was not asked for it: ${(error as Error).message}`;
    }
  }
}

/** An item to count in one of `of` partitions, perhaps for a request, and the word that a script returned for it. */
export type Item = { of: number; request?: Request; word?: unknown };

/** The name of a request, and the generation that is stored with it. */
export type Request = { name: string; epoch: string | undefined };

/** Returns the requests of items, which are in the order of the call. */
export const requestsOf = (items: Item[]): Work[] =>
  items.flatMap(({ request }, i) => (request ? [{ item: i + 1, ...request }] : []));

/** Sets the words of items. After EXPIRED the next request asks Redis for its generation. */
export function setWords(family: Family, home: number, items: Item[], words: unknown[]): void {
  items.forEach((item, i) => (item.word = words[i]));
  if (words.includes('EXPIRED')) family.forget(home);
}

/** Counts items in one call, and sets the word of each. */
type Count<Some> = (key: number, items: Some[]) => Promise<unknown>;

/** An item, until when it may wait for a call, and how its caller is notified. */
type Waiting<Some> = { item: Some; until: number; resolve(word: unknown): void; reject(error: unknown): void };

/** The items of a key: those that wait, and how many are in how many calls. */
type Line<Some> = { waiting: Waiting<Some>[]; calls: number; inFlight: number };

/**
 * Group commit: for each key and number of partitions two calls are in flight, so that Redis executes one while the callers of
 * the other count again. Items that arrive meanwhile share the next call.
 */
export class Queue<Some extends Item> {
  private readonly lines = new Map<string, Line<Some>>();

  constructor(private readonly count: Count<Some>, private readonly limit = 1000) {}

  /** Counts the item, and returns its word. */
  push(family: Family, key: number, item: Some): Promise<unknown> {
    const line = memo(this.lines, `${key}/${item.of}`, () => ({ waiting: [], calls: 0, inFlight: 0 }) as Line<Some>);
    return new Promise((resolve, reject) => {
      line.waiting.push({ item, until: family.deadline(), resolve, reject });
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
    } catch (thrown) {
      for (const { reject } of sent) reject(thrown);
      // those that have waited as long would wait as long again
      const error = thrown as CounterfoilError;
      const late = line.waiting.filter(({ until }) => until < performance.now());
      line.waiting.splice(0, late.length);
      for (const { reject } of late) reject(new NotCounted(error.reason, error.message, error, true));
    }
    line.calls -= 1;
    line.inFlight -= sent.length;
    this.fill(key, line);
  }
}
