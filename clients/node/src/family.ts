import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Call, Reply, Sender } from './call.js';
import { Misconfigured, NotCounted, OutcomeUnknown } from './errors.js';
import { type Bytes, crc32, memo } from './words.js';

const FRESH_MS = 30_000;
/** How long the daemon may take to configure an emptied Redis again. */
const EMPTIED_MS = 3_000;
const ATTEMPTS = 5;

export type Kind = 'buffered' | 'cached' | 'series' | 'activity' | 'visitors';

/** The settings of a kind, as lua/README.md lists them. */
export type Settings = Record<string, any>;

/** What `family_epoch` returned. */
export type Epoch = { current: string; before: string; partitions: number; settings: Settings; askedAt: number };

/** Work that may be run again: a caller's name for it, and the epoch before its first run. */
export type Request = { name: string; epoch: string };

/** Returns a call without its caller, at this time of the server. */
export type Build = (settings: Settings, now: number) => Call;

/** How far the clock of Redis is ahead of this process's monotonic one, in milliseconds, as far as it has mattered. */
let ahead = performance.timeOrigin;

/** A family: its keys, its epochs and its calls. */
export class Family {
  private known: Epoch | undefined;
  private readonly epochs = new Map<number, Epoch>();
  private readonly asking = new Map<number, Promise<Epoch>>();

  constructor(private readonly sender: Sender, readonly name: string, private readonly kind: Kind) {}

  keys(partition: number, ...names: string[]): string[] {
    return names.map((name) => `cf1:{${this.name}/${partition}}:${name}`);
  }

  /** Returns what is known of the family, of any age: it keeps its partitions as long as anything counts in it. */
  async describe(): Promise<Epoch> {
    return this.known ?? this.epoch(0);
  }

  async partition(id: Bytes): Promise<number> {
    const { partitions, settings } = await this.describe();
    return settings.wide ? Math.floor(Math.random() * partitions) : crc32(id) % partitions;
  }

  /** Returns the partition that remembers the callers of calls in this one. */
  home(partition: number): number {
    return this.sender.redis.isCluster ? partition : 0;
  }

  deadline(): number {
    return performance.now() + this.sender.retryFor;
  }

  /** Makes a call that is executed once, and returns its reply, `OK` or `DUP`. Its home is that of `partition`. */
  async count(script: string, partition: number, build: Build, request?: Request): Promise<Reply> {
    const { callers, redis } = this.sender;
    const [home, deadline] = [this.home(partition), this.deadline()];
    for (let attempt = 1; ; attempt += 1) {
      const { current, before, settings } = await this.epoch(home, deadline);
      if (request && request.epoch !== current && request.epoch !== before) throw unknown('EXPIRED');
      const caller = request ? { name: request.name, n: 0 } : (callers.pop() ?? { name: randomBytes(8).toString('hex'), n: 0 });
      const [keys, args] = build(settings, performance.now() + ahead);
      const fence = [caller.name, (caller.n += 1), request ? before : current, ''];
      const reply = await this.sender.send(script, [[...this.homeKeys(home), ...keys], [...fence, ...args]], true, deadline);
      const { status, isRepeat } = reply;
      if (!isRepeat && !request) callers.push(caller); // else an arrival of this call may still be on its way
      if (status === 'OK' || status === 'DUP') return reply;
      if (status === 'EXPIRED') this.epochs.delete(home);
      if (status === 'OUTSIDE') ahead = Number(reply.words[0]) - performance.now();
      const isHarmless = status === 'OUTSIDE' ? !isRepeat : status === 'EXPIRED' && (request || (redis.closeOwn && !isRepeat));
      if (!isHarmless || attempt === ATTEMPTS) throw unknown(status);
    }
  }

  /** Makes a call that may be executed any number of times, and returns the words after `OK`. */
  async read(script: string, build: Build): Promise<unknown[]> {
    const { settings } = await this.describe();
    for (let attempt = 1; attempt <= ATTEMPTS; attempt += 1) {
      const call = build(settings, performance.now() + ahead);
      const { status, words } = await this.sender.send(script, call, false, this.deadline());
      if (status === 'OK') return words;
      ahead = Number(words[0]) - performance.now();
    }
    throw new NotCounted('OUTSIDE', 'the clock of Redis jumps');
  }

  /** Returns an epoch of this home that was asked for within 30 s. */
  async epoch(home: number, deadline = this.deadline()): Promise<Epoch> {
    const epoch = this.epochs.get(home);
    if (epoch && performance.now() < epoch.askedAt + FRESH_MS) return epoch;
    return memo(this.asking, home, () => this.ask(home, deadline).finally(() => this.asking.delete(home)));
  }

  private homeKeys(home: number): string[] {
    return this.keys(home, 'calls', 'calls_before');
  }

  private async ask(home: number, deadline: number): Promise<Epoch> {
    for (const emptiedUntil = performance.now() + EMPTIED_MS; ; await sleep(200)) {
      const askedAt = performance.now();
      const call: Call = [this.homeKeys(home), [this.kind, this.known?.partitions ?? '', '', '']];
      const { status, words } = await this.sender.send('family_epoch', call, false, deadline).catch(noEpoch);
      if (status === 'OK') {
        const [current = '', before = '', , partitions, settings = '{}'] = words.map(String);
        this.known = { current, before, partitions: Number(partitions), settings: JSON.parse(settings), askedAt };
        this.epochs.set(home, this.known);
        return this.known;
      }
      if (status === 'UNCONFIGURED' && this.known && performance.now() < emptiedUntil) continue;
      this.known = undefined;
      this.epochs.clear();
      throw new Misconfigured(status, status === 'UNCONFIGURED' ? unconfigured(this.name) : `${this.name} is ${words.slice(0, 2)} partitions now`);
    }
  }
}

function unconfigured(name: string): string {
  const declare = "declare it in the daemon's counterfoil.toml (`counterfoil init` creates the tables) and start the daemon";
  return `${name} is not configured in this Redis: check the name, the server and the database number, or ${declare}`;
}

function unknown(status: string): OutcomeUnknown {
  const why = { PASSED: "a caller's name is used twice", EXPIRED: 'Redis lost its memory, or the call took too long' }[status];
  return new OutcomeUnknown(status, why ?? 'unexpected reply');
}

/** A call that did not get its epoch was not sent. */
function noEpoch(cause: Error): never {
  throw cause instanceof Misconfigured ? cause : new NotCounted('no epoch', cause.message, cause, cause instanceof NotCounted && cause.temporary);
}
