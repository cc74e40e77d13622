import { type CounterfoilError, type Integer, NotCounted } from './errors.js';
import type { Family } from './family.js';
import { checkId, checkInteger, plus } from './words.js';

const MOST_IDS = 100_000;

/** An id and what to add to it. */
export type Pair = readonly [id: string, delta: Integer];

/** Receives what `later` took and was not counted. */
export type OnError = (family: string, id: string, delta: Integer, error: CounterfoilError) => void;

/** Deltas that are summed up in this process, and sent soon. */
export abstract class Later {
  private sums = new Map<string, Integer>();
  private inFlight = 0;
  private sending: Promise<CounterfoilError | undefined> | undefined;
  private timer: NodeJS.Timeout | undefined;
  /** The errors that no `flush` has reported. */
  private failures: CounterfoilError[] = [];

  /** @internal */
  constructor(protected readonly family: Family, private readonly every: number, private readonly onError?: OnError) {}

  abstract addMany(pairs: Iterable<Pair>): Promise<(Integer | null | CounterfoilError)[]>;

  /**
   * Adds soon: sums up in this process, and sends the sums within `laterEvery`. A killed process loses what it has not sent.
   * `flush` and `onError` report failures.
   * @throws NotCounted (`BADID`, `BADARG`; `BUSY`: 100,000 ids wait)
   */
  later(id: string, delta: Integer = 1): void {
    checkId(id);
    checkInteger(delta);
    const sum = this.sums.get(id);
    const isFull = sum === undefined && this.sums.size + this.inFlight >= MOST_IDS;
    if (isFull) throw new NotCounted('BUSY', `${MOST_IDS} ids of ${this.family.name} wait to be sent`, undefined, true);
    this.sums.set(id, plus(sum ?? 0, delta));
    this.schedule();
  }

  /** Waits until all that `later` took before is settled. Throws the first error of what was not counted. */
  async flush(): Promise<void> {
    await this.sending;
    const unsent = await this.send();
    const [first = unsent, ...others] = this.failures.splice(0);
    if (!first) return;
    const what = first === unsent ? `${this.sums.size} ids are not sent yet` : `${others.length + 1} ids were not counted`;
    const Class = first.constructor as typeof NotCounted;
    throw new Class(first.reason, `later() of ${this.family.name}: ${what}: ${first.message}`, first, first === unsent);
  }

  private schedule(): void {
    if (!this.sending) this.timer ??= setTimeout(() => void this.send(), this.every);
  }

  /** Sends the sums. Returns the error of those that stay for the next time. */
  private send(): Promise<CounterfoilError | undefined> {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.sending ??= this.sendSums().finally(() => {
      this.sending = undefined;
      if (this.sums.size > 0) this.schedule();
    });
    return this.sending;
  }

  private async sendSums(): Promise<CounterfoilError | undefined> {
    const sums = [...this.sums];
    this.sums = new Map();
    this.inFlight = sums.length;
    const errors = await this.addMany(sums);
    this.inFlight = 0;
    let unsent: CounterfoilError | undefined;
    for (const [i, [id, delta]] of sums.entries()) {
      const error = errors[i];
      if (!(error instanceof Error)) continue;
      if (error instanceof NotCounted && error.temporary) {
        unsent = error;
        this.sums.set(id, plus(this.sums.get(id) ?? 0, delta));
      } else {
        this.failures.push(error);
        if (this.onError) process.nextTick(this.onError, this.family.name, id, delta, error);
      }
    }
    return unsent;
  }
}
