/** An integer: a `number` as far as numbers are exact, up to 2^53 - 1, and a `bigint` beyond. */
export type Integer = number | bigint;

/** The base class of all errors of this package. */
export class CounterfoilError extends Error {
  /** `reason` is a word to compare with, such as `FULL`; `message` explains it; `cause` is the error of a library. */
  constructor(readonly reason: string, message: string, cause?: unknown) {
    super(`${reason}: ${message}`, cause === undefined ? {} : { cause });
    this.name = new.target.name;
  }
}

/** The hit was not counted. A repeat is refused as well, unless it is `temporary`: Redis was unreachable or busy. */
export class NotCounted extends CounterfoilError {
  /** `value` is the counter's current value, if `reason` is `RANGE` and the family is cached. */
  constructor(reason: string, message: string, cause?: unknown, readonly temporary = false, readonly value?: Integer) {
    super(reason, message, cause);
  }
}

/** The hit was counted once or not at all. Counting it again might count it twice. */
export class OutcomeUnknown extends CounterfoilError {}

/** Nothing was counted, and nothing will be until the configuration of the application or a server is corrected. */
export class Misconfigured extends CounterfoilError {}
