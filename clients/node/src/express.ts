import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Id } from './values.js';
import { Views as AnyViews } from './views.js';

export type { Source, ViewsOptions } from './views.js';

/** The properties of a request of Express 4 or 5 that are used. */
export type ExpressRequest = IncomingMessage & { ip?: string | undefined; params: any };

type ExpressResponse = ServerResponse & { locals: any };

/** The views of pages in Express. A visitor's address is `request.ip`, by the setting `trust proxy`. */
export class Views<Request extends ExpressRequest = ExpressRequest> extends AnyViews<Request> {
  /**
   * Middleware of a route: counts a view after a response with a status below 400 was sent, unless the request is a HEAD. `idOf`
   * defaults to the parameter `id` of the route.
   */
  counted(idOf: (request: Request, response: ExpressResponse) => Id | Promise<Id> = ({ params }) => params.id) {
    return (request: Request, response: ExpressResponse, next: () => void): void => {
      void request.ip; // once it was read, Node knows it after the connection was closed, too
      response.once('finish', () => {
        if (response.statusCode < 400 && request.method !== 'HEAD') void this.tryCountView(request, () => idOf(request, response));
      });
      next();
    };
  }

  /** @internal */
  protected header({ headers }: Request, name: string): string | undefined { return headers[name]?.toString(); }

  /** @internal */
  protected address({ ip }: Request): string | undefined { return ip; }
}
