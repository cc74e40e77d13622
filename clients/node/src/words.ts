import * as zlib from 'node:zlib';
import { type Integer, NotCounted } from './errors.js';

/** Bytes: a text stands for its UTF-8. */
export type Bytes = string | Uint8Array;

/** Returns a `number` where it is exact. */
export function integer(value: bigint | string | number): Integer {
  return Number.isSafeInteger(Number(value)) ? Number(value) : BigInt(value);
}

export function plus(a: Integer, b: Integer): Integer {
  return Number.isSafeInteger(Number(a) + Number(b)) ? Number(a) + Number(b) : integer(BigInt(a) + BigInt(b));
}

/** Returns the integer that a script returned for an id, or the error if it returned another word. */
export function result(id: string, word: unknown): Integer | NotCounted {
  return /^-?\d+$/.test(String(word)) ? integer(word as string) : new NotCounted(String(word), `${id} was not counted`);
}

/** Returns the results after `DUP`: null for what was counted before; `refused` are the others, `3:FULL 7:RANGE`. */
export function repeated(ids: string[], refused: unknown): (null | NotCounted)[] {
  const reasons = new Map([...String(refused).matchAll(/(\d+):(\w+)/g)].map(([, pair, reason]) => [Number(pair) - 1, reason]));
  return ids.map((id, i) => (reasons.has(i) ? (result(id, reasons.get(i)) as NotCounted) : null));
}

export function checkId(id: string, longest = 255): void {
  if (typeof id === 'string' && id !== '' && id.isWellFormed() && Buffer.byteLength(id) <= longest) return;
  throw new NotCounted('BADID', `expected a string of 1 to ${longest} bytes of UTF-8, not ${typeof id} ${String(id).slice(0, 300)}`);
}

export function checkVisitor(visitor: Bytes): void {
  if (!(visitor instanceof Uint8Array && visitor.length > 0 && visitor.length <= 255)) checkId(visitor as string);
}

export function checkInteger(value: Integer, least: Integer = -(2n ** 63n)): void {
  if ((typeof value === 'bigint' || Number.isSafeInteger(value)) && value >= least && value < 2n ** 63n) return;
  throw new NotCounted('BADARG', `expected a 64-bit integer of at least ${least}, exact as a number or a bigint, not ${value}`);
}

/** Returns the value of the key, which `make` makes if there is none. */
export function memo<Key, Value>(map: Map<Key, Value>, key: Key, make: () => Value): Value {
  const value = map.get(key) ?? make();
  map.set(key, value);
  return value;
}

/** The IEEE CRC-32. Node has it since 20.15 and 22.2. */
export const crc32: (bytes: Bytes) => number = zlib.crc32 ?? ((bytes) => {
  let crc = ~0;
  for (const byte of Buffer.from(bytes as string)) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit += 1) crc = (crc >>> 1) ^ (crc & 1 && 0xedb88320);
  }
  return ~crc >>> 0;
});
