import type { IncomingHttpHeaders, ServerResponse } from 'node:http';
import type { Id } from './values.js';
import { type Source, Views as AnyViews, type ViewsOptions } from './views.js';

export type { Source, ViewsOptions } from './views.js';

/** The properties of a request of Fastify 4 or 5 that are used. */
export type FastifyRequest = { ip: string; headers: IncomingHttpHeaders; method: string; params: any; log: { error(line: string): void } };

/** The views of pages in Fastify. A visitor's address is `request.ip`, by the option `trustProxy`. */
export class Views<Request extends FastifyRequest = FastifyRequest> extends AnyViews<Request> {
  constructor(counterfoil: Source, family: string, options: ViewsOptions<Request> = {}) {
    super(counterfoil, family, { log: (line, request) => request.log.error(line), ...options });
  }

  /**
   * Options of a route: their hooks count a view after a response with a status below 400 was sent, unless the request is a HEAD.
   * `idOf` defaults to the parameter `id` of the route.
   */
  counted(idOf: (request: Request) => Id | Promise<Id> = ({ params }) => params.id) {
    const onResponse = async (request: Request, { statusCode, raw }: { statusCode: number; raw: ServerResponse }): Promise<void> => {
      const isSent = raw.writableFinished || !raw.destroyed; // the response to an injected request does not finish
      if (isSent && statusCode < 400 && request.method !== 'HEAD') await this.tryCountView(request, () => idOf(request));
    };
    const onRequest = (request: Request, _reply: unknown, done: () => void): void => {
      void request.ip; // once it was read, Node knows it after the connection was closed, too
      done();
    };
    return { onRequest, onResponse };
  }

  /** @internal */
  protected header({ headers }: Request, name: string): string | undefined { return headers[name]?.toString(); }

  /** @internal */
  protected address({ ip }: Request): string { return ip; }
}
