import { Misconfigured, memo } from './values.js';

const DAY = 86_400;
const formats = new Map<string, Intl.DateTimeFormat>();

/** A slice of time: its start and end in Unix seconds, and its name in kept ids. */
export type Span = { start: number; end: number; name: string };

/** Returns the slice that contains the time. `label` is `60s`, or else `day` or `month` by the clocks of the time zone. */
export function slice(label: string, zone: string | undefined, at: number): Span {
  const length = parseInt(label, 10);
  const start = Math.floor(at / length) * length;
  if (length) return { start, end: start + length, name: '*' };
  const name = new Date(shown(zone, at) * 1000).toISOString().slice(0, label === 'day' ? 10 : 7);
  const [year, month, day = 1] = name.split('-').map(Number) as [number, number, number?];
  const next = label === 'day' ? Date.UTC(year, month - 1, day + 1) : Date.UTC(year, month, 1);
  return { start: whenShown(zone, Date.parse(name) / 1000), end: whenShown(zone, next / 1000), name: label === 'day' ? name : `${name}-01` };
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
    const format = memo(formats, timeZone, () => new Intl.DateTimeFormat('sv', { timeZone, dateStyle: 'short', timeStyle: 'medium' }));
    return Date.parse(`${format.format(at * 1000).replace(' ', 'T')}Z`) / 1000; // Swedish: 2014-09-20 23:59:59
  } catch (cause) {
    throw new Misconfigured('TIMEZONE', `Node does not know the time zone ${timeZone}`, cause);
  }
}

/** Returns when clocks first show a time. If they skip it, they had shown it had they not been changed. */
function whenShown(zone: string | undefined, local: number): number {
  const [before, after] = [local - DAY, local + DAY].map((at) => local + at - shown(zone, at)) as [number, number];
  return shown(zone, before) !== local && shown(zone, after) === local ? after : before;
}
