import { createHmac } from 'node:crypto';
import type { Counterfoil } from './index.js';
import { type Id, Misconfigured, NotCounted, OutcomeUnknown } from './values.js';

/** The client, or a function that returns the client of this process. It is called for the first view. */
export type Source = Counterfoil | PromiseLike<Counterfoil> | (() => Counterfoil | PromiseLike<Counterfoil>);

type Test<Request> = boolean | ((request: Request) => unknown);

/** Options that decide which views count. */
export interface ViewsOptions<Request> {
  /**
   * True counts crawlers. By default, false, `isbot` recognizes them by the User-Agent, and must be installed; a request without a
   * User-Agent is a crawler's. A function returns whether a request is a crawler's, which does not count.
   */
  bots?: Test<Request>;
  /** A function that returns whether a request is of staff, which then does not count. Without a function nothing recognizes staff. */
  staff?: Test<Request>;
  /** True, the default, counts each view. False counts a visitor once a day in UTC, in a family of kind `visitors`. */
  repeats?: boolean;
  /** The key of the hash of address and User-Agent that stands for a visitor. Equal in all processes, and not public. */
  secret?: string;
  /** Returns who a visitor is, such as the id of a user or a session, which Redis then remembers as it is. */
  visitor?: (request: Request) => Id | Uint8Array | Promise<Id | Uint8Array>;
  /** Writes the line about a view that a page could not count. Defaults to `console.error`, in Fastify to the log of the request. */
  log?: (line: string, request: Request) => void;
}

/** Counts the views of pages, for requests of any framework. */
export abstract class Views<Request> {
  private readonly isCrawler: Promise<(request: Request) => unknown>;
  private opened: Promise<Counterfoil> | undefined;

  /** Views of a family of kind `buffered`, or of kind `visitors` if `repeats` is false. Throws `Misconfigured`. */
  constructor(private readonly counterfoil: Source, private readonly family: string, protected readonly options: ViewsOptions<Request> = {}) {
    const { repeats = true, secret, visitor } = options;
    if (!repeats && !secret && !visitor) throw new Misconfigured('OPTIONS', 'repeats: false needs a secret, or a function visitor');
    // without isbot this is rejected at once: Node reports that, and ends a process that does not handle it
    this.isCrawler = this.crawlers(options.bots);
  }

  /** Returns a header of the request. */
  protected abstract header(request: Request, name: string): string | null | undefined;

  /** Returns the address of the client. */
  protected abstract address(request: Request): string | null | undefined;

  /** Counts a view of an id. Returns false if it was left out, and throws what `add` and `firstVisit` throw. */
  async countView(request: Request, id: Id): Promise<boolean> {
    this.opened ??= this.open();
    const counterfoil = await this.opened;
    return counterfoil.hold(this.count(counterfoil, request, id)); // a process that ends waits for it, though it has responded already
  }

  /** Counts a view of a page that was shown. Returns false if it was not counted, and logs an error in a line instead of throwing it. */
  async tryCountView(request: Request, id: Id | (() => Id | Promise<Id>)): Promise<boolean> {
    let shown: Id | undefined;
    try {
      shown = typeof id === 'function' ? await id() : id;
      return await this.countView(request, shown);
    } catch (error) {
      const { log = (line: string) => console.error(line) } = this.options;
      const what = error instanceof OutcomeUnknown ? 'has an unknown outcome' : 'was not counted';
      log(`a view of ${shown} in ${this.family} ${what}: ${(error as Error).message}`.replaceAll('\n', ' '), request);
      return false;
    }
  }

  private async count(counterfoil: Counterfoil, request: Request, id: Id): Promise<boolean> {
    if (await this.isLeftOut(request)) return false;
    if (this.options.repeats === false) {
      const today = new Date().toISOString().slice(0, 10);
      return counterfoil.visitors(this.family).firstVisit(id, today, await this.visitorOf(request));
    }
    await counterfoil.buffered(this.family).add(id);
    return true;
  }

  private async isLeftOut(request: Request): Promise<boolean> {
    const { bots, staff } = this.options;
    const isPrefetch = ['sec-purpose', 'purpose'].some((name) => this.header(request, name)?.includes('prefetch'));
    if (isPrefetch) return true;
    if (bots !== true && (await (await this.isCrawler)(request))) return true;
    return typeof staff === 'function' && Boolean(await staff(request));
  }

  private async crawlers(bots: Test<Request> = false): Promise<(request: Request) => unknown> {
    if (typeof bots === 'function') return bots;
    if (bots) return () => false;
    try {
      const { isbot } = await import('isbot');
      return (request) => isbot(this.header(request, 'user-agent') || 'bot');
    } catch (error) {
      throw new Misconfigured('LIBRARY', 'install isbot, or write bots: true if crawlers count', error);
    }
  }

  private async open(): Promise<Counterfoil> {
    try {
      return await (typeof this.counterfoil === 'function' ? this.counterfoil() : this.counterfoil);
    } catch (error) {
      this.opened = undefined; // the next view tries again
      throw error;
    }
  }

  private visitorOf(request: Request): Id | Uint8Array | Promise<Id | Uint8Array> {
    const { secret, visitor } = this.options;
    if (visitor) return visitor(request);
    const address = this.address(request);
    if (!address) throw new NotCounted('BADID', 'no address: the client has gone, or its proxy connects by a Unix socket and is not trusted');
    return createHmac('sha256', secret!).update(`${address}\n${this.header(request, 'user-agent') ?? ''}`).digest().subarray(0, 16);
  }
}
