import { Misconfigured } from './errors.js';
import { memo } from './words.js';

const DAY = 86_400;

/** A slice of time: its start and end in Unix seconds, and its name in kept ids. */
export type Span = { start: number; end: number; name: string };

const calendars = new Map<string, Calendar>();

/** Slices of time; days and months begin at midnight in a time zone. */
export class Calendar {
  /** The last slice of each label: most calls are in the same one. */
  private readonly last = new Map<string, Span>();

  private constructor(private readonly format: Intl.DateTimeFormat) {}

  static of(timeZone = 'UTC'): Calendar {
    try {
      const options = { timeZone, dateStyle: 'short', timeStyle: 'medium' } as const;
      return memo(calendars, timeZone, () => new Calendar(new Intl.DateTimeFormat('sv', options)));
    } catch (cause) {
      throw new Misconfigured('TIMEZONE', `Node does not know the time zone ${timeZone}`, cause);
    }
  }

  /** Returns the slice that contains the time. `label` is `60s`, `day` or `month`. */
  slice(label: string, at: number): Span {
    const last = this.last.get(label);
    if (last && at >= last.start && at < last.end) return last;
    const slice = label.endsWith('s') ? fixed(parseInt(label, 10), at) : this.days(label === 'month', at);
    this.last.set(label, slice);
    return slice;
  }

  /** Returns the starts of the last `count` slices, the oldest first. */
  starts(label: string, count: number, at: number): number[] {
    const starts = [this.slice(label, at).start];
    while (starts.length < count) starts.unshift(this.slice(label, starts[0]! - 1).start);
    return starts;
  }

  private days(isMonth: boolean, at: number): Span {
    const date = new Date(this.shown(at) * 1000);
    const [year, month, day] = [date.getUTCFullYear(), date.getUTCMonth(), isMonth ? 1 : date.getUTCDate()];
    const next = isMonth ? Date.UTC(year, month + 1) : Date.UTC(year, month, day + 1);
    const [first, name] = [Date.UTC(year, month, day), new Date(Date.UTC(year, month, day)).toISOString().slice(0, 10)];
    return { start: this.whenShown(first / 1000), end: this.whenShown(next / 1000), name };
  }

  /** Returns what clocks show, as Unix seconds of the same time in UTC. */
  private shown(at: number): number {
    return Date.parse(`${this.format.format(at * 1000).replace(' ', 'T')}Z`) / 1000; // Swedish: 2014-09-20 23:59:59
  }

  /** Returns when clocks first show a time. If they skip it, they had shown it had they not been changed. */
  private whenShown(local: number): number {
    const [before, after] = [local - DAY, local + DAY].map((at) => local + at - this.shown(at)) as [number, number];
    return this.shown(before) !== local && this.shown(after) === local ? after : before;
  }
}

function fixed(length: number, at: number): Span {
  const start = Math.floor(at / length) * length;
  return { start, end: start + length, name: '*' };
}
