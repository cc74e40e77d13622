import { Misconfigured, memo } from './values.js';

const DAY = 86_400;
const formats = new Map<string, Intl.DateTimeFormat>();

/**
 * Returns the slice that contains the time: its start and end in Unix seconds, and its name in kept ids. `label` is `60s`, or
 * else `day` or `month` by the clocks of the time zone.
 */
export function slice(label: string, zone: string | undefined, at: number) {
  const length = parseInt(label, 10);
  const fixed = Math.floor(at / length) * length;
  if (length) return { start: fixed, end: fixed + length, name: '*' };
  const date = new Date(shown(zone, at) * 1000);
  const [year, month, day] = [date.getUTCFullYear(), date.getUTCMonth(), label === 'day' ? date.getUTCDate() : 1];
  const first = Date.UTC(year, month, day);
  const next = label === 'day' ? Date.UTC(year, month, day + 1) : Date.UTC(year, month + 1, 1);
  const name = new Date(first).toISOString().slice(0, 10);
  return { start: whenShown(zone, first / 1000), end: whenShown(zone, next / 1000), name };
}

/** Returns the starts of the last `count` slices, the oldest first. */
export function starts(label: string, zone: string | undefined, count: number, at: number): number[] {
  const starts = [slice(label, zone, at).start];
  while (starts.length < count) starts.unshift(slice(label, zone, starts[0]! - 1).start);
  return starts;
}

/** Returns what clocks show, as Unix seconds of the same time in UTC. */
function shown(timeZone = 'UTC', at: number): number {
  try {
    const style = { timeZone, dateStyle: 'short', timeStyle: 'medium' } as const;
    const format = memo(formats, timeZone, () => new Intl.DateTimeFormat('sv', style)); // Swedish: 2014-09-20 23:59:59
    return Date.parse(`${format.format(at * 1000).replace(' ', 'T')}Z`) / 1000;
  } catch (cause) {
    throw new Misconfigured('TIMEZONE', `Node does not know the time zone ${timeZone}`, cause);
  }
}

/** Returns when clocks first show a time. If they skip it, they had shown it had they not been changed. */
function whenShown(zone: string | undefined, local: number): number {
  const before = 2 * local - DAY - shown(zone, local - DAY);
  const after = 2 * local + DAY - shown(zone, local + DAY);
  return shown(zone, before) !== local && shown(zone, after) === local ? after : before;
}
