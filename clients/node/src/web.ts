import { type Id, Misconfigured } from './values.js';
import { type Source, Views as AnyViews, type ViewsOptions } from './views.js';

export type { Source } from './views.js';

/** The properties of a `Request` that are used. A page of Next.js has no `Request`: pass `{ headers: await headers() }`. */
export type WebRequest = { readonly method?: string; readonly headers: { get(name: string): string | null } };

export interface WebOptions<Request> extends ViewsOptions<Request> {
  /**
   * Returns the address of the client, which a `Request` does not have: a header that the proxy in front sets in each request, such as
   * `(request) => request.headers.get('x-real-ip')`.
   */
  address?: (request: Request) => string | null | undefined;
}

/**
 * The views of pages where a handler takes a `Request` and returns a `Response`: route handlers of Next.js, Hono, serverless functions.
 * Each view is counted before the response is returned, since such a process may be frozen then.
 */
export class Views<Request extends WebRequest = WebRequest> extends AnyViews<Request> {
  constructor(counterfoil: Source, family: string, protected override readonly options: WebOptions<Request> = {}) {
    super(counterfoil, family, options);
    const isKnown = options.repeats !== false || options.visitor || options.address;
    if (!isKnown) throw new Misconfigured('OPTIONS', 'repeats: false needs a function address, since a Request has none, or visitor');
  }

  /**
   * Wraps a handler: counts a view if the status of its response is below 400, unless the request is a HEAD. `idOf` defaults to the
   * parameter `id` that Next.js passes.
   */
  counted<R extends Request, Rest extends any[], Reply extends { readonly status: number }>(
    handler: (request: R, ...rest: Rest) => Reply | Promise<Reply>,
    idOf: (request: R, ...rest: Rest) => Id | Promise<Id> = async (_, ...[context]) => (await context.params).id,
  ): (request: R, ...rest: Rest) => Promise<Reply> {
    return async (request, ...rest) => {
      const response = await handler(request, ...rest);
      if (response.status < 400 && request.method !== 'HEAD') await this.tryCountView(request, () => idOf(request, ...rest));
      return response;
    };
  }

  /** @internal */
  protected header({ headers }: Request, name: string): string | null { return headers.get(name); }

  /** @internal */
  protected address(request: Request): string | null | undefined { return this.options.address?.(request); }
}
