import { randomBytes } from 'node:crypto';

/** An integer: a `number` as far as numbers are exact, up to 2^53 - 1, and a `bigint` beyond. */
export type Integer = number | bigint;

const [LEAST, MOST] = [-(2n ** 63n), 2n ** 63n - 1n];

/** An id, a name or a page: an integer stands for its decimal text. */
export type Id = string | Integer;

/** Bytes: a text stands for its UTF-8. */
export type Bytes = string | Uint8Array;

/**
 * The property with the name of a class of errors, by which `instanceof` compares: a bundler may shorten the names of classes, and an
 * application may have several copies of this package.
 */
const NAME = Symbol.for('counterfoil.error');

/** The base class of all errors of this package. `instanceof` knows the errors of other copies of it as well. */
export class CounterfoilError extends Error {
  /** @internal */
  static readonly [NAME]: string = 'CounterfoilError';
  /** @internal The message without the reason. */
  readonly text: string;

  /** `reason` is a word to compare with, such as `FULL`; `message` explains it; `cause` is the error of a library. */
  constructor(readonly reason: string, message: string, cause?: unknown) {
    super(`${reason}: ${message}`, cause === undefined ? {} : { cause });
    this.name = new.target[NAME];
    this.text = message;
  }

  /** @internal */
  static [Symbol.hasInstance](value: unknown): boolean {
    if (!Object.hasOwn(this, NAME)) return Function.prototype[Symbol.hasInstance].call(this, value); // a class of the application
    const isOf = (prototype: object | null): boolean =>
      prototype !== null && (prototype.constructor?.[NAME as never] === this[NAME] || isOf(Object.getPrototypeOf(prototype)));
    return value instanceof Error && isOf(Object.getPrototypeOf(value));
  }
}

/** The hit was not counted. A repeat is refused as well, unless it is `temporary`: Redis was unreachable, busy or full. */
export class NotCounted extends CounterfoilError {
  /** @internal */
  static override readonly [NAME] = 'NotCounted';

  /** `value` is the counter's current value, if `reason` is `RANGE` and the family is cached. */
  constructor(reason: string, message: string, cause?: unknown, readonly temporary = false, readonly value?: Integer) {
    super(reason, message, cause);
  }
}

/** The hit was counted once or not at all. Counting it again might count it twice. */
export class OutcomeUnknown extends CounterfoilError {
  /** @internal */
  static override readonly [NAME] = 'OutcomeUnknown';
}

/** Nothing was counted, and nothing will be until the configuration of the application or a server is corrected. */
export class Misconfigured extends CounterfoilError {
  /** @internal */
  static override readonly [NAME] = 'Misconfigured';
}

/** Returns a `number` where it is exact. */
export const integer = (value: Integer | string): Integer =>
  Number.isSafeInteger(Number(value)) ? Number(value) : BigInt(value);

/** The reason of a call that was not sent. */
export const UNREACHABLE = 'UNREACHABLE';

/** The reason of a family that no daemon has configured, or that the daemon refuses. */
export const UNCONFIGURED = 'UNCONFIGURED';

/** The word for a list of days or months that has ended, because no daemon serves the family. */
export const NO_CALENDAR = 'NOCALENDAR';

/** Returns the error of a call after `close`. */
export const closed = (): NotCounted => new NotCounted('CLOSED', 'the client is closed, and takes no further calls');

/** Returns the error of a family that no daemon has configured; `why` is what else is known. */
export function unconfigured(family: string, why: string): NotCounted {
  const advice = 'declare it in counterfoil.toml, and run the daemon';
  const text = `no daemon has configured ${family}: ${advice}${why && `; ${why}`}`;
  return new NotCounted(UNCONFIGURED, text, undefined, true);
}

/** Returns the integer that a script returned for an id, or null after `DUP`. Throws if it returned a word. */
export function integerOf(id: Id, word: unknown): Integer | null {
  if (typeof word === 'number' || word === null) return word;
  if (/^-?\d+$/.test(String(word))) return integer(word as string);
  if (word === 'EXPIRED') throw new OutcomeUnknown(word, 'Redis may have forgotten the request');
  throw new NotCounted(String(word), `${id} was not counted`, undefined, word === NO_CALENDAR);
}

/** Returns the words of a call after `DUP`: null for a hit that was counted. `refused` names the others: `3:FULL 7:RANGE`. */
export function repeated(count: number, refused: unknown): (string | null)[] {
  const words = Array<string | null>(count).fill(null);
  for (const [, pair, word] of String(refused).matchAll(/(\d+):([A-Z]\S*)/g)) words[Number(pair) - 1] = word!;
  return words;
}

/** Returns an id as text. */
export function textOf(id: Id, longest = 255): string {
  const isInteger = typeof id === 'bigint' || Number.isSafeInteger(id);
  const text = isInteger || (typeof id === 'string' && id.isWellFormed()) ? String(id) : '';
  const length = Buffer.byteLength(text);
  if (length > 0 && length <= longest) return text;
  const given = `${typeof id} ${String(id).slice(0, 300)}`;
  throw new NotCounted('BADID', `expected 1 to ${longest} bytes of UTF-8, or an integer, not ${given}`);
}

/** Checks a visitor, which may be bytes of any kind, and returns it. */
export function visitorOf(visitor: Id | Uint8Array): Bytes {
  const isBytes = visitor instanceof Uint8Array && visitor.byteLength > 0 && visitor.byteLength <= 255;
  return isBytes ? visitor : textOf(visitor as Id);
}

export function checkInteger(value: Integer, least: Integer = LEAST): void {
  const isExact = typeof value === 'bigint' ? value <= MOST : Number.isSafeInteger(value);
  if (isExact && value >= least) return;
  throw new NotCounted('BADARG', `expected an exact 64-bit integer of at least ${least}, not ${value}`);
}

/** Returns a text for some bytes that no other bytes have. */
export const keyOf = (bytes: Bytes): string => Buffer.from(bytes).toString('latin1');

/** Returns the value of the key. If there is none, stores what `make` returns. */
export function memo<Key, Value>(map: Map<Key, Value>, key: Key, make: () => Value): Value {
  const value = map.get(key) ?? make();
  map.set(key, value);
  return value;
}

/** Returns a random number. A copy of this machine may have the same state of random numbers, so the time is a part of it. */
const random = (): bigint => randomBytes(8).readBigUInt64BE() ^ process.hrtime.bigint();

/** Returns a random name. */
export const uniqueName = (): string => random().toString(16);

/** The largest number of a call, and the longest step to a caller's next one. */
export const [MAX_N, MAX_STEP] = [2 ** 53, 2 ** 20];

/** Returns a random step to a caller's next number, so that two machines that were resumed from one snapshot use different numbers. */
export const randomStep = (): number => 1 + Number(random() % BigInt(MAX_STEP));

/** Returns the integers from 0 to `count - 1`. */
export const upTo = (count: number): number[] => [...Array(count).keys()];
