import { setTimeout as sleep } from 'node:timers/promises';
import type { Family } from './family.js';
import { type Integer, Misconfigured, NotCounted, checkId, integer } from './values.js';

/** Ids of a request. */
const IDS = 1000;
/** The daemon replies within 10 s. */
const REPLY_MS = 12_000;
const LEAST_MS = 1_000;
const PAUSE_MS = 50;

type Reply = { status: number; text: string; retryAfter: number };

/** Asks daemons for exact values, over connections that `fetch` keeps. */
export class Daemons {
  private readonly urls: string[];
  private readonly headers: Record<string, string>;

  constructor(daemon: string | readonly string[] = [], token?: string) {
    this.urls = [daemon].flat().map((url) => url.replace(/\/$/, ''));
    const wrong = this.urls.find((url) => !/^https?:\/\/[^/]/.test(url) || !URL.canParse(url));
    if (wrong !== undefined) throw new Misconfigured('OPTIONS', `daemon: expected http://HOST:PORT, not ${wrong}`);
    this.headers = { 'Content-Type': 'application/json', ...(token && { Authorization: `Bearer ${token}` }) };
  }

  async value(family: Family, id: string): Promise<Integer> { return (await this.values(family, [id]))[0]!; }

  /** Returns the values in the order of the ids. */
  async values(family: Family, ids: Iterable<string>): Promise<Integer[]> {
    return (await this.find(family, ids)).map((value) => value ?? 0);
  }

  /** Returns the values, null where only the application makes the row of a cached counter, and has not. */
  async find(family: Family, ids: Iterable<string>): Promise<(Integer | null)[]> {
    const all = [...ids];
    all.forEach((id) => checkId(id));
    if (this.urls.length === 0) throw new Misconfigured('NODAEMON', 'set the option daemon');
    const deadline = family.deadline();
    const values: (Integer | null)[] = [];
    for (let from = 0; from < all.length; from += IDS) {
      values.push(...(await this.ask(family, all.slice(from, from + IDS), deadline)));
    }
    return values;
  }

  /** Asks one daemon after the other, and begins again while none of them is available. */
  private async ask(family: Family, ids: string[], deadline: number): Promise<(Integer | null)[]> {
    const body = JSON.stringify({ family: family.name, ids });
    for (let pause = PAUSE_MS; ; pause = PAUSE_MS) {
      let explanation = '';
      for (const url of [...this.urls]) {
        const { status, text, retryAfter } = await this.post(url, body, family.retryFor / this.urls.length);
        // JSON.parse would round large ones
        const values = /"values": ?\[([-\d, nul]+)\]/.exec(text)?.[1]?.split(',').map((value) => numberOrNull(value.trim()));
        if (status === 200 && values?.length === ids.length) return values;
        explanation = `${url}: ${status} ${text.slice(0, 2000)}`;
        if (status >= 300 && status < 500 && status !== 429) throw new Misconfigured(`HTTP ${status}`, explanation);
        if (this.urls[0] === url) this.urls.push(this.urls.shift()!); // the next calls begin with another one
        // all that were refused together would be refused again
        pause = Math.max(pause, retryAfter * 1000 * (0.5 + Math.random() / 2));
      }
      if (performance.now() + pause >= deadline) throw new NotCounted('unreachable', explanation, undefined, true);
      await sleep(pause);
    }
  }

  /** Returns the reply, 503 if there is none. A silent daemon leaves time for the others. */
  private async post(url: string, body: string, share: number): Promise<Reply> {
    const signal = AbortSignal.timeout(Math.min(REPLY_MS, Math.max(share, LEAST_MS)));
    try {
      // a redirect could lead to another server, with the token
      const options = { method: 'POST', redirect: 'manual', headers: this.headers, body, signal } as const;
      const reply = await fetch(`${url}/api/v1/values`, options);
      const retryAfter = Number(reply.headers.get('Retry-After')) || 0;
      return { status: reply.status, text: await reply.text(), retryAfter };
    } catch (error) {
      return { status: 503, text: `${(error as Error).message}: ${(error as Error).cause ?? ''}`, retryAfter: 0 };
    }
  }
}

function numberOrNull(word: string): Integer | null { return word === 'null' ? null : integer(word); }
