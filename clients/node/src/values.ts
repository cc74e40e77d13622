/** An integer: a `number` as far as numbers are exact, up to 2^53 - 1, and a `bigint` beyond. */
export type Integer = number | bigint;

const [LEAST, MOST] = [-(2n ** 63n), 2n ** 63n - 1n];

/** Bytes: a text stands for its UTF-8. */
export type Bytes = string | Uint8Array;

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

/** Returns a `number` where it is exact. */
export const integer = (value: Integer | string): Integer => (Number.isSafeInteger(Number(value)) ? Number(value) : BigInt(value));

export function plus(a: Integer, b: Integer): Integer {
  const sum = Number(a) + Number(b);
  return Number.isSafeInteger(sum) ? sum : integer(BigInt(a) + BigInt(b));
}

/** Returns the integer that a script returned for an id, or the error if it returned another word. */
export function result(id: string, word: unknown): Integer | NotCounted {
  if (typeof word === 'number') return word;
  return /^-?\d+$/.test(String(word)) ? integer(word as string) : new NotCounted(String(word), `${id} was not counted`);
}

/** Returns the results after `DUP`: null for what was counted before; `refused` are the others, `3:FULL 7:RANGE`. */
export function repeated(ids: string[], refused: unknown): (null | NotCounted)[] {
  const words = new Map([...String(refused).matchAll(/(\d+):(\w+)/g)].map(([, pair, word]) => [Number(pair) - 1, word]));
  return ids.map((id, i) => (words.has(i) ? (result(id, words.get(i)) as NotCounted) : null));
}

export function checkId(id: string, longest = 255): void {
  if (typeof id === 'string' && id !== '' && id.isWellFormed() && Buffer.byteLength(id) <= longest) return;
  throw new NotCounted('BADID', `expected a string of 1 to ${longest} bytes of UTF-8, not ${typeof id} ${String(id).slice(0, 300)}`);
}

export function checkVisitor(visitor: Bytes): void {
  if (!(visitor instanceof Uint8Array && visitor.length > 0 && visitor.length <= 255)) checkId(visitor as string);
}

export function checkInteger(value: Integer, least: Integer = LEAST): void {
  if (typeof value === 'bigint' ? value >= least && value <= MOST : Number.isSafeInteger(value) && value >= least) return;
  throw new NotCounted('BADARG', `expected a 64-bit integer of at least ${least}, exact as a number or a bigint, not ${value}`);
}

/** Returns the value of the key, which `make` makes if there is none. */
export function memo<Key, Value>(map: Map<Key, Value>, key: Key, make: () => Value): Value {
  const value = map.get(key) ?? make();
  map.set(key, value);
  return value;
}

/** Returns the integers from 0 up to this one. */
export const upTo = (count: number): number[] => [...Array(count).keys()];
