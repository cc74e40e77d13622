// A serverless function: `npm run build` makes one file of it and its dependencies, for a platform that freezes it between calls. So
// it counts before it responds, and never with `later`.
import { Counterfoil, NotCounted, OutcomeUnknown } from 'counterfoil';
import { Views } from 'counterfoil/web';
import { Hono } from 'hono';
import { find, list, listPage, productPage } from './shop.mjs'; // of the sample for Express

const { COUNTERFOIL_REDIS, COUNTERFOIL_DAEMON } = process.env;
const counterfoil = await Counterfoil.connect(COUNTERFOIL_REDIS, 'shop', { daemon: COUNTERFOIL_DAEMON });
const views = new Views(counterfoil, 'product_views');
const visits = new Views(counterfoil, 'product_visitors', { repeats: false, visitor: ({ headers }) => headers.get('X-Visitor') });

const html = (page) => new Response(page, { headers: { 'Content-Type': 'text/html; charset=utf-8' } });

const product = views.counted(async (_, { params }) => {
  const found = await find(params.id);
  return found ? html(productPage(found)) : new Response('Not found', { status: 404 });
});

const app = new Hono();

app.get('/products', async ({ req }) => {
  const products = await list(counterfoil.buffered('product_views'));
  return req.header('Accept')?.includes('text/html') ? html(listPage(products)) : Response.json(products);
});

app.get('/products/:id', ({ req }) => product(req.raw, { params: req.param() }));

app.post('/products/:id/views', async ({ req }) => Response.json({ counted: await views.countView(req.raw, req.param('id')) }));

app.post('/products/:id/visits', async ({ req }) => Response.json({ counted: await visits.countView(req.raw, req.param('id')) }));

app.onError((error) => {
  if (error instanceof NotCounted) return Response.json({ error: 'not_counted' }, { status: 503 });
  if (error instanceof OutcomeUnknown) return Response.json({ error: 'outcome_unknown' }, { status: 500 });
  console.error(error);
  return Response.json({ error: 'failed' }, { status: 500 });
});

export default (request) => app.fetch(request);
