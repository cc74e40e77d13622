import type { Family } from './family.js';
import { type CounterfoilError, type Integer, NotCounted, OutcomeUnknown, UNCONFIGURED, closed, integer } from './values.js';

const MOST_SUMS = 100_000;
/** The number of sums that are sent at a time. */
const MOST_HITS = 1000;
/** The pause after which sums that could not be sent are sent again. */
const PAUSE_MS = 1_000;

/** Receives a sum of `later` that was not counted: the family's full name, the id, name or page, and the number. */
export type OnError = (family: string, id: string, number: Integer, error: CounterfoilError) => void;

export type LaterOptions = { laterEvery?: number; onError?: OnError };

/** Equal hits, and their number. */
type Sum<Hit> = { key: string; hit: Hit; n: Integer };

/** Hits that are summed up in this process, and sent soon. */
export abstract class Later<Hit> {
  private sums = new Map<string, Sum<Hit>>();
  private inFlight = 0;
  private timer: NodeJS.Timeout | undefined;
  /** The error of sums that had to stay, after which the next send waits for longer. */
  private unsent: CounterfoilError | undefined;
  /** The last send. Each begins when the one before has ended. */
  private sending: Promise<void> = Promise.resolve();
  /** The first error of a dropped sum that no `flush` has reported, and how many sums were dropped since then. */
  private failure: CounterfoilError | undefined;
  private failed = 0;

  /** @internal */
  constructor(protected readonly family: Family, private readonly options: LaterOptions) {}

  /** @internal Counts `n` hits as the direct method does. */
  protected abstract countSum(hit: Hit, n: Integer): Promise<unknown>;

  /** @internal Returns the id, name or page of a hit, for `onError`. */
  protected abstract idOf(hit: Hit): string;

  /**
   * Sends what `later` took, and throws the first error of what was not counted. Waits for `retryFor` at most. `flush` of the
   * client does so for all families.
   */
  async flush(): Promise<void> {
    this.family.checkOpen();
    await this.send();
    await this.report();
  }

  /** @internal True while sums wait. */
  get isWaiting(): boolean { return this.sums.size > 0; }

  /** @internal Sends all that waits. Each send begins when the one before has ended. */
  send(): Promise<void> { return (this.sending = this.sending.then(() => this.sendSums())); }

  /** @internal Drops what `send` could not send, and throws its first error. */
  async close(): Promise<void> {
    for (const sum of this.sums.values()) this.drop(sum, this.unsent!);
    this.sums.clear();
    this.unsent = undefined;
    await this.report();
  }

  private async report(): Promise<void> {
    await new Promise(setImmediate); // lets `onError` run first, since the application may exit when it has the error
    const first = this.failure ?? this.unsent;
    if (!first) return;
    const mayPass = !this.failure;
    const outcome = first instanceof OutcomeUnknown ? 'have an unknown outcome' : 'were not counted';
    const what = this.failed ? `${this.failed} sums ${outcome}` : `${this.sums.size} sums wait`;
    [this.failure, this.failed] = [undefined, 0];
    const Class = first.constructor as typeof NotCounted;
    throw new Class(first.reason, `later() of ${this.family.name}: ${what}: ${first.text}`, first, mayPass);
  }

  /** @internal Adds to the sum of a key, which is sent soon. */
  protected keep(key: string, hit: Hit, n: Integer): void {
    if (this.family.isClosing) throw closed();
    const isFull = this.sums.size + this.inFlight >= MOST_SUMS && !this.sums.has(key);
    if (isFull) throw new NotCounted('BUSY', `${MOST_SUMS} sums of ${this.family.name} wait to be sent`, undefined, true);
    if (!this.put({ key, hit, n })) throw new NotCounted('RANGE', `the sum of ${this.idOf(hit)} is beyond 64 bits`);
  }

  /** Adds to a sum. Returns false, and adds nothing, if it would be beyond 64 bits. */
  private put({ key, hit, n }: Sum<Hit>): boolean {
    const sum = BigInt(this.sums.get(key)?.n ?? 0) + BigInt(n);
    if (sum !== BigInt.asIntN(64, sum)) return false;
    this.sums.set(key, { key, hit, n: integer(sum) });
    if (!this.family.isClosing) this.timer ??= setTimeout(() => void this.send(), this.unsent ? PAUSE_MS : (this.options.laterEvery ?? 5));
    return true;
  }

  private drop({ hit, n }: Sum<Hit>, error: CounterfoilError): void {
    const { onError } = this.options;
    if (onError) process.nextTick(onError, this.family.name, this.idOf(hit), n, error);
    else if (!this.failure) this.warn(`${n} for ${this.idOf(hit)} ${error instanceof OutcomeUnknown ? 'have an unknown outcome' : 'were not counted'}`, error);
    this.failure ??= error;
    this.failed += 1;
  }

  private warn(what: string, error: CounterfoilError): void {
    process.emitWarning(`later() of ${this.family.name}: ${what}: ${error.message}`, 'CounterfoilWarning');
  }

  private async sendSums(): Promise<void> {
    clearTimeout(this.timer);
    this.timer = undefined;
    const sums = [...this.sums.values()];
    const before = this.unsent;
    this.sums = new Map();
    this.unsent = undefined;
    for (this.inFlight = sums.length; sums.length > 0; this.inFlight = sums.length) {
      const group = sums.splice(0, MOST_HITS);
      const count = ({ hit, n }: Sum<Hit>) => this.countSum(hit, n).then(() => undefined, (error: CounterfoilError) => error);
      const errors = await Promise.all(group.map((sum) => this.unsent ?? count(sum))); // once sums have to stay, all others would, too
      for (const [i, sum] of group.entries()) {
        const error = errors[i];
        if (!error) continue;
        const mayPass = error.reason === UNCONFIGURED || (error instanceof NotCounted && error.temporary);
        if (mayPass) this.unsent = error;
        if (!mayPass || !this.put(sum)) this.drop(sum, error);
      }
    }
    if (this.unsent && !before && !this.family.isClosing) this.warn('sums wait', this.unsent);
  }
}
