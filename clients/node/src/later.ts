import type { Family } from './family.js';
import { type CounterfoilError, type Integer, NotCounted, OutcomeUnknown, checkId, checkInteger, integer } from './values.js';

const MOST_IDS = 100_000;
/** Of a call. */
const MOST_PAIRS = 1000;

/** An id and what to add to it. */
export type Pair = readonly [id: string, delta: Integer];

/** Receives what `later` took and was not counted. */
export type OnError = (family: string, id: string, delta: Integer, error: CounterfoilError) => void;

export type LaterOptions = { laterEvery?: number; onError?: OnError };

/** Deltas that are summed up in this process, and sent soon. */
export abstract class Later {
  private sums = new Map<string, Integer>();
  private inFlight = 0;
  private timer: NodeJS.Timeout | undefined;
  /** The shortest time until the next send, which is longer after sums had to stay. */
  private pause = 0;
  private isClosed = false;
  /** The last send. Each begins when the one before has ended, and returns the error of sums that stay for the next one. */
  private sending: Promise<NotCounted | undefined> = Promise.resolve(undefined);
  /** The first error that no `flush` has reported, and of how many ids there is one. */
  private failure: CounterfoilError | undefined;
  private failed = 0;

  /** @internal */
  constructor(protected readonly family: Family, private readonly options: LaterOptions) {}

  abstract addMany(pairs: Iterable<Pair>): Promise<(Integer | null | CounterfoilError)[]>;

  /**
   * Adds soon: sums up in this process, and sends the sums within `laterEvery`. A killed process loses what it has not sent.
   * `flush` and `onError` report failures.
   * @throws NotCounted (`BADID`, `BADARG`; `RANGE`: the sum is beyond 64 bits; `BUSY`: 100,000 ids wait; `CLOSED`)
   */
  later(id: string, delta: Integer = 1): void {
    checkId(id);
    if (this.family.known) this.family.check(id, this.family.known);
    checkInteger(delta);
    if (this.isClosed) throw new NotCounted('CLOSED', `${this.family.name} is closed`);
    const isFull = this.sums.size + this.inFlight >= MOST_IDS && !this.sums.has(id);
    if (isFull) throw new NotCounted('BUSY', `${MOST_IDS} ids of ${this.family.name} wait to be sent`, undefined, true);
    if (!this.put(id, delta)) throw new NotCounted('RANGE', `the sum of ${id} is beyond 64 bits`);
  }

  /** Waits until all that `later` took before is settled. Throws the first error of what was not counted. */
  async flush(): Promise<void> {
    const unsent = await this.send();
    await new Promise<void>((resolve) => process.nextTick(resolve)); // after onError: the application may exit now
    const first = this.failure ?? unsent;
    if (!first) return;
    const what = this.failed ? `${this.failed} ids were not counted` : `${this.sums.size} ids wait`;
    [this.failure, this.failed] = [undefined, 0];
    const Class = first.constructor as typeof NotCounted;
    throw new Class(first.reason, `later() of ${this.family.name}: ${what}: ${first.message}`, first, first === unsent);
  }

  /** @internal Sends what `later` took for the last time. What is left was not counted. */
  async close(): Promise<void> {
    this.isClosed = true;
    const unsent = await this.send();
    if (unsent) for (const [id, delta] of this.sums) this.drop(id, delta, unsent);
    this.sums.clear();
    await this.flush();
  }

  /** Returns false if the sum would be beyond 64 bits. */
  private put(id: string, delta: Integer): boolean {
    const sum = BigInt(this.sums.get(id) ?? 0) + BigInt(delta);
    if (sum !== BigInt.asIntN(64, sum)) return false;
    this.sums.set(id, integer(sum));
    if (!this.isClosed) this.timer ??= setTimeout(() => void this.send(), Math.max(this.options.laterEvery ?? 5, this.pause));
    return true;
  }

  private drop(id: string, delta: Integer, error: CounterfoilError): void {
    const { onError } = this.options;
    this.failure ??= error;
    this.failed += 1;
    if (onError) process.nextTick(onError, this.family.name, id, delta, error);
  }

  private send(): Promise<NotCounted | undefined> { return (this.sending = this.sending.then(() => this.sendSums())); }

  private async sendSums(): Promise<NotCounted | undefined> {
    clearTimeout(this.timer);
    this.timer = undefined;
    const sums = [...this.sums];
    this.sums = new Map();
    let unsent: NotCounted | undefined;
    for (this.inFlight = sums.length; sums.length > 0; this.inFlight = sums.length) {
      const group = sums.splice(0, MOST_PAIRS);
      const deadline = this.family.deadline();
      const errors = unsent ? group.map(() => unsent) : await this.addMany(group); // this one would wait as long
      for (const [i, [id, delta]] of group.entries()) {
        const error = errors[i];
        if (error instanceof NotCounted && error.temporary && this.put(id, delta)) unsent = error;
        else if (error instanceof Error) this.drop(id, delta, error);
        const hasWaited = error instanceof OutcomeUnknown && performance.now() > deadline;
        if (hasWaited) unsent ??= new NotCounted(error.reason, error.message, error, true);
      }
    }
    this.pause = unsent ? 50 : 0;
    return unsent;
  }
}
