import { Counterfoil, NotCounted, OutcomeUnknown } from 'counterfoil';
import { Views } from 'counterfoil/express';
import express from 'express';
import { find, list, listPage, productPage } from './shop.mjs';

const { COUNTERFOIL_REDIS, COUNTERFOIL_DAEMON, PORT } = process.env;
const counterfoil = await Counterfoil.connect(COUNTERFOIL_REDIS, 'shop', { daemon: COUNTERFOIL_DAEMON });
const views = new Views(counterfoil, 'product_views');
const visits = new Views(counterfoil, 'product_visitors', { repeats: false, visitor: (request) => request.get('X-Visitor') });

const app = express();
let isClosing = false;

app.use((request, response, next) => {
  if (isClosing) response.set('Connection', 'close');
  next();
});

app.get('/products', async (request, response) => {
  const products = await list(counterfoil.buffered('product_views'));
  if (request.accepts(['json', 'html']) === 'html') response.send(listPage(products));
  else response.json(products);
});

app.get('/products/:id', views.counted(), async (request, response) => {
  const product = await find(request.params.id);
  if (product) response.send(productPage(product));
  else response.sendStatus(404);
});

app.post('/products/:id/views', async (request, response) => {
  response.json({ counted: await views.countView(request, request.params.id) });
});

app.post('/products/:id/visits', async (request, response) => {
  response.json({ counted: await visits.countView(request, request.params.id) });
});

app.use((error, request, response, next) => {
  if (error instanceof NotCounted) response.status(503).json({ error: 'not_counted' });
  else if (error instanceof OutcomeUnknown) response.status(500).json({ error: 'outcome_unknown' });
  else next(error);
});

const server = app.listen(PORT, '127.0.0.1');
const close = () => server.close(() => counterfoil.close().catch(console.error).finally(() => process.exit()));
process.once('SIGTERM', () => {
  isClosing = true; // connections end with a response: `close` would cut off a request that is on its way
  setTimeout(close, 500);
});
