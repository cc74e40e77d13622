import { setTimeout as sleep } from 'node:timers/promises';
import type { Family } from './family.js';
import { Outage, PROBE_MS } from './outage.js';
import { type Id, type Integer, Misconfigured, NotCounted, UNREACHABLE, integer, textOf, unconfigured } from './values.js';

/** The largest number of ids in a request. */
const IDS = 1000;
const PAUSE_MS = 50;

/** A number in place of a value that does not arrive in time, or a function that returns it, such as one that reads the row. */
export type Fallback = OrNull | ((error: NotCounted) => OrNull | Promise<OrNull>);

/** A fallback for many values: one number for all of them, or one for each in the order of the ids, or a function. */
export type Fallbacks = OneOrAll | ((error: NotCounted) => OneOrAll | Promise<OneOrAll>);
type OneOrAll = OrNull | readonly OrNull[];
/** NULL in a row counts as 0. */
type OrNull = Integer | null;

/** A function that reads values, null where there is no row. */
type Read = () => Promise<(Integer | null)[]>;

/** A reply. `text` begins with the status. Without a reply the status is 0, and `text` says why. */
type Reply = { status: number; text: string; retryAfter: number };

/** Returns the `count` values that `read` returns, 0 for null, or after a temporary failure the fallback. */
export async function valuesOr(fallback: Fallbacks | undefined, count: number, read: Read): Promise<Integer[]> {
  if (Array.isArray(fallback)) checkLength(fallback, count);
  try {
    return (await read()).map((value) => value ?? 0);
  } catch (error) {
    const mayPass = error instanceof NotCounted && error.temporary;
    if (fallback === undefined || !mayPass) throw error;
    const values = typeof fallback === 'function' ? await fallback(error) : fallback;
    const all = Array.isArray(values) ? values : Array<OrNull>(count).fill(values as OrNull);
    checkLength(all, count);
    return all.map((value) => value ?? 0);
  }
}

function checkLength(values: readonly OrNull[], count: number): void {
  if (values.length !== count) throw new NotCounted('BADARG', `expected ${count} fallbacks, not ${values.length}`);
}

/** Asks daemons for exact values, over connections that `fetch` keeps. */
export class Daemons {
  private readonly urls: string[];
  private readonly headers: Record<string, string>;
  private readonly outage = new Outage(() => this.probe(), 'the daemon');

  constructor(daemon: string | readonly string[] = [], token: string | undefined, private readonly retryFor: number) {
    this.urls = [daemon].flat().map((url) => url.replace(/\/$/, ''));
    const wrong = this.urls.find((url) => !/^https?:\/\/[^/]/.test(url) || !URL.canParse(url));
    if (wrong !== undefined) throw new Misconfigured('OPTIONS', `daemon: expected http://HOST:PORT, not ${wrong}`);
    this.headers = { 'Content-Type': 'application/json', ...(token && { Authorization: `Bearer ${token}` }) };
  }

  async value(family: Family, id: Id, fallback?: Fallback): Promise<Integer> {
    return (await this.values(family, [id], fallback))[0]!;
  }

  /** Returns the values in the order of the ids. */
  async values(family: Family, ids: Iterable<Id>, fallback?: Fallbacks): Promise<Integer[]> {
    const all = [...ids].map((id) => textOf(id));
    return valuesOr(fallback, all.length, () => this.find(family, all, family.deadlineOfRead()));
  }

  /** Returns the values, null where only the application makes the row of a cached counter, and has not. */
  async find(family: Family, ids: string[], deadline: number): Promise<(Integer | null)[]> {
    family.checkOpen();
    if (this.urls.length === 0) throw new Misconfigured('NODAEMON', 'set the option daemon');
    const values: (Integer | null)[] = [];
    for (let from = 0; from < ids.length; from += IDS) {
      values.push(...(await this.ask(family, ids.slice(from, from + IDS), deadline)));
    }
    return values;
  }

  /** Asks one daemon after the other, and begins again while none of them is available. */
  private async ask(family: Family, ids: string[], deadline: number): Promise<(Integer | null)[]> {
    const body = JSON.stringify({ family: family.name, ids });
    const begun = performance.now();
    for (let isAway = true, pause = PAUSE_MS; ; pause = PAUSE_MS) {
      if (this.outage.error) throw this.outage.error;
      let explanation = '';
      for (const [i, url] of [...this.urls].entries()) {
        // a silent one leaves time for the others
        const share = (deadline - performance.now()) / (this.urls.length - i);
        // a redirect could lead to another server, with the token
        const request = { method: 'POST', redirect: 'manual', headers: this.headers, body } as const;
        const { status, text, retryAfter } = await fetched(`${url}/api/v1/values`, Math.max(share, 1), request);
        // JSON.parse would round large ones
        const values = /"values": ?\[([-\d, nul]+)\]/.exec(text)?.[1]?.split(',').map((value) => numberOrNull(value.trim()));
        if (status === 200 && values?.length === ids.length) return values;
        explanation = `${url}: ${text.slice(0, 2000)}`;
        if (status === 404 && errorOf(text).includes(family.name)) throw unconfigured(family.name, explanation);
        if (status >= 300 && status < 500 && status !== 429) throw new Misconfigured(`HTTP ${status}`, explanation);
        if (this.urls[0] === url) this.urls.push(this.urls.shift()!); // the next calls begin with another one
        isAway &&= status === 0;
        // a random pause: clients that were refused together would be refused together again
        pause = Math.max(pause, retryAfter * 1000 * (0.5 + Math.random() / 2));
      }
      if (performance.now() + pause < deadline) await sleep(pause);
      else {
        const isLong = performance.now() - begun > this.retryFor / 4; // the failure of a call with little time left shows nothing
        if (isAway && isLong) this.outage.begin(UNREACHABLE, explanation, begun);
        throw new NotCounted(UNREACHABLE, explanation, undefined, true);
      }
    }
  }

  /** Returns whether any daemon replies. */
  private async probe(): Promise<boolean> {
    const replies = await Promise.all(this.urls.map((url) => fetched(`${url}/healthz`, PROBE_MS)));
    return replies.some(({ status }) => status > 0);
  }
}

async function fetched(url: string, ms: number, request: RequestInit = {}): Promise<Reply> {
  try {
    const reply = await fetch(url, { ...request, signal: AbortSignal.timeout(Math.ceil(ms)) });
    const retryAfter = Number(reply.headers.get('Retry-After')) || 0;
    return { status: reply.status, text: `${reply.status} ${await reply.text()}`, retryAfter };
  } catch (error) {
    const { message, cause } = error as Error;
    return { status: 0, text: `${message}${cause ? `: ${cause}` : ''}`, retryAfter: 0 };
  }
}

/** Returns the error in a reply of the daemon, or `''` for the reply of another server, such as a proxy. */
function errorOf(text: string): string {
  try {
    return String(JSON.parse(text.slice(text.indexOf(' '))).error);
  } catch {
    return '';
  }
}

function numberOrNull(word: string): Integer | null { return word === 'null' ? null : integer(word); }
