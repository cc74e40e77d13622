import { Counterfoil, NotCounted, OutcomeUnknown } from 'counterfoil';
import { Views } from 'counterfoil/fastify';
import fastify from 'fastify';
import { find, list, listPage, productPage } from './shop.mjs'; // of the sample for Express

const { COUNTERFOIL_REDIS, COUNTERFOIL_DAEMON, PORT } = process.env;
const counterfoil = await Counterfoil.connect(COUNTERFOIL_REDIS, 'shop', { daemon: COUNTERFOIL_DAEMON });
const views = new Views(counterfoil, 'product_views');
const visits = new Views(counterfoil, 'product_visitors', { repeats: false, visitor: (request) => request.headers['x-visitor'] });

const app = fastify({ logger: { level: 'warn' }, return503OnClosing: false });
let isClosing = false;

app.addHook('onClose', () => counterfoil.close());
app.addHook('onRequest', async (request, reply) => {
  if (isClosing) reply.header('Connection', 'close');
});

app.get('/products', async (request, reply) => {
  const products = await list(counterfoil.buffered('product_views'));
  if (!request.headers.accept?.includes('text/html')) return products;
  return reply.type('text/html').send(listPage(products));
});

app.get('/products/:id', views.counted(), async (request, reply) => {
  const product = await find(request.params.id);
  if (!product) return reply.code(404).send();
  return reply.type('text/html').send(productPage(product));
});

app.post('/products/:id/views', async (request) => ({ counted: await views.countView(request, request.params.id) }));

app.post('/products/:id/visits', async (request) => ({ counted: await visits.countView(request, request.params.id) }));

app.setErrorHandler((error, request, reply) => {
  if (error instanceof NotCounted) return reply.code(503).send({ error: 'not_counted' });
  if (error instanceof OutcomeUnknown) return reply.code(500).send({ error: 'outcome_unknown' });
  throw error;
});

await app.listen({ port: Number(PORT), host: '127.0.0.1' });
const close = () => app.close().catch(console.error).finally(() => process.exit());
process.once('SIGTERM', () => {
  isClosing = true; // connections end with a response: `close` would cut off a request that is on its way
  setTimeout(close, 500);
});
