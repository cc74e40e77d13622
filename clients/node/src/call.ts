import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { Outage, PROBE_MS } from './outage.js';
import type { Redis } from './redis.js';
import { SCRIPTS } from './scripts.js';
import { type Bytes, CounterfoilError, Misconfigured, NotCounted, OutcomeUnknown, UNREACHABLE, closed, memo } from './values.js';

const NO_REPLY = 'no reply';
/** Codes with which the server refuses every call, or does not reply. */
const AWAY = /^(no reply|UNREACHABLE|LOADING|BUSY|CLUSTERDOWN|MASTERDOWN)$/;
const TEMPORARY = /^(NOREPLICAS|TRYAGAIN|READONLY|MOVED|ASK)$/;
const MISCONFIGURED = /^(NOAUTH|BADARG|BADKEY|CROSSSLOT)$/;
/** Codes of calls that were not executed, and whose repeat would be refused. After any other code a call may be executed in part. */
const [FOR_NOW, FOR_GOOD] = [/^(OOM|MISCONF)$/, /^(WRONGTYPE|BADSTATE)$/];

/** The interval at which the limits of waits for replies are checked. */
const TICK_MS = 10;

/** The reply on a new connection that Redis closes at once. */
const FULL = 'ERR max number of clients';

/** A call of a script. */
export type Call = { keys: string[]; args: (Bytes | number)[] };

/** A reply. `isRepeat`: another arrival of the call may have been executed, or may still be. */
export type Reply = { status: string; words: unknown[]; isRepeat: boolean };

/** A call that waits for its reply. */
type Wait = { until: number; end(): void };

const hashes = new Map<string, string>();

const sha1Of = (script: string): string => memo(hashes, script, () => createHash('sha1').update(SCRIPTS[script]!).digest('hex'));

/** Sends calls until a reply arrives. */
export class Sender {
  /** Callers without a call in flight, and the numbers of their last calls. Redis remembers each name, so names are used again. */
  readonly callers: { name: string; n: number }[] = [];

  /** In a cluster by the partition whose keys a call has, otherwise one for the server. */
  private readonly outages = new Map<string, Outage>();
  private readonly waits = new Set<Wait>();
  private timer: NodeJS.Timeout | undefined;
  /** When all calls end at the latest. It is set once the client is closing. */
  private end = Infinity;
  private isClosed = false;

  constructor(readonly redis: Redis, private readonly timeout: number, private readonly retryFor: number) {}

  get isClosing(): boolean { return this.end !== Infinity; }

  /** Refuses a call of a client that is closed. */
  checkOpen(): void {
    if (this.isClosed) throw closed();
  }

  /** Returns when a call that counts ends at the latest. While the client closes, calls may take the time that `close` has. */
  deadline(): number { return this.isClosing ? this.end : performance.now() + this.retryFor; }

  /** Returns when a read ends at the latest: a page waits for several. */
  deadlineOfRead(): number { return performance.now() + this.retryFor / 2; }

  /**
   * Sends the call, and repeats it as it is until `deadline`. Nothing is sent later, or in an outage. `counts`: the outcome
   * matters if no reply arrives.
   */
  async send(name: string, { keys, args }: Call, counts: boolean, deadline: number): Promise<Reply> {
    this.checkOpen();
    const outage = this.outageOf(keys[0]!);
    const begun = performance.now();
    const left = () => Math.min(deadline, this.end) - performance.now();
    if (left() <= 0) throw outage?.error ?? new NotCounted('TIMEOUT', 'it waited too long for other calls', undefined, true);
    let command = ['EVALSHA', sha1Of(name), keys.length, ...keys, ...args].map(word);
    for (let pause = 5, lost = false; ; pause = Math.min(2 * pause, 50)) {
      const known = this.redis.state() === 'closed' ? undefined : outage?.error;
      if (known) throw failure(known, known.reason, counts, lost);
      const connection = this.redis.connection();
      try {
        const reply = await this.once(command, keys[0]!, left());
        const [status, ...words] = Array.isArray(reply) ? reply : [`unexpected reply ${reply}`];
        return { status: String(status), words, isRepeat: lost || (counts && this.redis.connection() !== connection) };
      } catch (thrown) {
        const error = thrown as Error;
        const code = codeOf(error);
        // the library may have sent the call over another connection before this refusal, which proves nothing about that send
        const mayFollowAnother = (!connection && code !== 'NOSCRIPT') || this.redis.connection() !== connection;
        if (counts && (code === NO_REPLY || (mayFollowAnother && !(error instanceof CounterfoilError)))) lost = true;
        const isAway = AWAY.test(code);
        if (code === 'NOSCRIPT') command = ['EVAL', SCRIPTS[name]!, ...command.slice(2)];
        else if (!this.redis.isCluster && /^(MOVED|ASK)$/.test(code) && !lost) {
          throw new Misconfigured(code, `use a client for a cluster: ${error.message}`, error);
        } else if ((isAway || TEMPORARY.test(code)) && left() > pause) await sleep(pause);
        else {
          const isLong = performance.now() - begun > this.retryFor / 4; // the failure of a call with little time left shows nothing
          if (isAway && isLong) outage?.begin(code === NO_REPLY ? UNREACHABLE : code, textOf(error), begun);
          throw failure(error, code, counts, lost);
        }
      }
    }
  }

  /** Lets all calls end at a time. */
  endAt(time: number): void {
    this.end = time;
    for (const wait of this.waits) wait.until = Math.min(wait.until, time);
  }

  /** Probes all outages now. */
  async retryOutages(): Promise<void> { await Promise.all([...this.outages.values()].map((outage) => outage.retry())); }

  async close(): Promise<void> {
    this.isClosed = true;
    await this.redis.closeOwn?.();
  }

  /** Returns the outage of a family's home, which begins when no daemon has configured it. */
  outageOfFamily(key: string, isConfigured: () => Promise<boolean>): Outage {
    return memo(this.outages, key, () => new Outage(isConfigured));
  }

  /** Returns the outage of the server, in a cluster that of the partition of a key. A key of no partition has none. */
  private outageOf(key: string): Outage | undefined {
    const [partition] = /^cf1:\{.*?\}/.exec(key) ?? [];
    if (!partition) return undefined;
    return memo(this.outages, this.redis.isCluster ? partition : '', () => new Outage(() => this.probe(partition), 'Redis'));
  }

  /** Asks for the epoch of a partition. Returns whether the outage is over: any reply ends it, and so does `close`. */
  private async probe(partition: string): Promise<boolean> {
    const keys = ['calls', 'calls_before', 'requests', 'requests_before'].map((name) => `${partition}:${name}`);
    const command = ['EVALSHA', sha1Of('family_epoch'), String(keys.length), ...keys, '', '', '', ''];
    return this.once(command, keys[0]!, PROBE_MS).then(() => true, (error) => !AWAY.test(codeOf(error)));
  }

  /** Sends a command once, and waits for its reply for `ms`, or for the timeout if that is less. */
  private async once(command: (string | Buffer)[], key: string, ms: number): Promise<unknown> {
    this.checkOpen(); // a closed client has closed its connection, whose error would mislead
    const state = this.redis.state();
    if (state === 'closed') throw new Misconfigured('CLOSED', 'connect it; node-redis needs a reconnectStrategy');
    if (state === 'away') throw unreachable(this.redis.failure);
    return new Promise((resolve, reject) => {
      const [begun, most] = [performance.now(), Math.min(this.timeout, ms)];
      const end = () => reject(new Error(`no reply within ${Math.round(performance.now() - begun)} ms`));
      const wait: Wait = { until: begun + most, end };
      this.waits.add(wait);
      this.watch();
      this.redis.send(command, key).then(resolve, reject).finally(() => this.waits.delete(wait));
    });
  }

  /** Ends the waits whose time has passed. All share one timer, since one for each call would be slow. */
  private watch(): void {
    const endWaits = () => {
      this.timer = undefined;
      for (const wait of this.waits) {
        if (wait.until > performance.now()) continue;
        this.waits.delete(wait);
        wait.end();
      }
      if (this.waits.size > 0) this.watch();
    };
    // after the timer Node first reads replies, which may have arrived while the process was busy
    this.timer ??= setTimeout(() => setImmediate(endWaits), TICK_MS).unref();
  }
}

/** Returns a word of a command as both libraries take it. ioredis would send any other array than a Buffer as a text. */
const word = (word: Bytes | number): string | Buffer =>
  word instanceof Uint8Array ? Buffer.from(word.buffer, word.byteOffset, word.byteLength) : String(word);

/** Returns the error of a call without a connection; `cause` is why there is none, if that is known. */
function unreachable(cause?: NodeJS.ErrnoException): NotCounted {
  const isUntrusted = /CERT|VERIFY_LEAF/.test(cause?.code ?? '');
  const hint = isUntrusted ? ': the option tlsCa names the authority of the server, tlsVerify: false accepts any' : '';
  const why = cause ? cause.message || cause.code || cause.name : 'the client is not connected'; // an error of several addresses has no message
  return new NotCounted(UNREACHABLE, why + hint, cause, true);
}

/** Returns the code of an error that Redis sent, or why there is none. An error of a library itself does not begin with a code. */
function codeOf(error: Error): string {
  if (error instanceof CounterfoilError) return error.reason;
  if (error.message.startsWith(FULL)) return UNREACHABLE;
  // Redis 6.2 wraps the errors of commands in a script. A bundler may have renamed the class of the error.
  return /^(?:ERR Error running script.*? -)?([A-Z]{3,})\b/.exec(error.message)?.[1] ?? NO_REPLY;
}

const textOf = (error: Error): string => (error instanceof CounterfoilError ? error.text : error.message);

function failure(error: Error, code: string, counts: boolean, lost: boolean): CounterfoilError {
  if (lost) return new OutcomeUnknown(code, textOf(error), error);
  if (error instanceof CounterfoilError) return error;
  if (MISCONFIGURED.test(code) || (code === 'NOPERM' && !counts)) return new Misconfigured(code, error.message, error);
  if (code === NO_REPLY && !counts) return new NotCounted(UNREACHABLE, error.message, error, true);
  if (AWAY.test(code) || TEMPORARY.test(code) || FOR_NOW.test(code)) return new NotCounted(code, error.message, error, true);
  return new (FOR_GOOD.test(code) || !counts ? NotCounted : OutcomeUnknown)(code, error.message, error);
}
