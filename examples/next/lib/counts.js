import { Counterfoil, NotCounted, OutcomeUnknown } from 'counterfoil';
import { Views } from 'counterfoil/next';

const { COUNTERFOIL_REDIS, COUNTERFOIL_DAEMON } = process.env;

// A property of the global object is one for the process: Next.js loads this file for each page, and in `next dev` after each change.
// It is made for the first call, so that `next build` connects to nothing.
export const counterfoil = () => (globalThis.counterfoil ??= Counterfoil.connect(COUNTERFOIL_REDIS, 'shop', { daemon: COUNTERFOIL_DAEMON }));

export const views = new Views(counterfoil, 'product_views');
export const visits = new Views(counterfoil, 'product_visitors', { repeats: false, visitor: ({ headers }) => headers.get('X-Visitor') });

/** Responds with whether it was counted. */
export async function respond(count) {
  try {
    return Response.json({ counted: await count });
  } catch (error) {
    if (error instanceof NotCounted) return Response.json({ error: 'not_counted' }, { status: 503 });
    if (error instanceof OutcomeUnknown) return Response.json({ error: 'outcome_unknown' }, { status: 500 });
    throw error;
  }
}
