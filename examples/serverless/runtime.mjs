// A process of the platform: calls the function with each request.
import handler from './function/handler.mjs';

process.on('message', async ({ method, url, headers }) => {
  const response = await handler(new Request(url, { method, headers }));
  process.send({ status: response.status, headers: Object.fromEntries(response.headers), body: await response.text() });
});
process.send('started');
