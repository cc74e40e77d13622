// Stands for a platform of serverless functions: it gives each request to one of two processes, and freezes a process from its
// response until its next request. One that dies is replaced; SIGHUP replaces both, and SIGTERM ends them.
import { fork } from 'node:child_process';
import { createServer } from 'node:http';

const [processes, requests] = [new Set(), []];
let isEnding = false;

function start() {
  const child = fork('runtime.mjs');
  processes.add(child);
  child.on('message', (reply) => {
    child.kill('SIGSTOP');
    if (reply !== 'started') respond(child, reply);
    child.isIdle = true;
    serve();
  });
  child.on('exit', () => {
    processes.delete(child);
    respond(child, { status: 502, body: '' });
    if (isEnding) return;
    setTimeout(start, 100);
  });
}

function respond(child, { status, headers, body }) {
  child.response?.writeHead(status, headers).end(body);
  child.response = undefined;
}

function serve() {
  for (const child of processes) {
    if (!child.isIdle) continue;
    if (child.isOld) child.kill('SIGKILL');
    else if (requests.length > 0) [child.isIdle, child.response] = [false, requests.shift()];
    if (child.isIdle) continue;
    child.kill('SIGCONT');
    const { method, url, headers } = child.response.req;
    child.send({ method, url: `http://${headers.host}${url}`, headers });
  }
}

const server = createServer((request, response) => {
  if (isEnding) response.setHeader('Connection', 'close');
  requests.push(response);
  serve();
});
server.listen(process.env.PORT, '127.0.0.1');
process.on('SIGHUP', () => {
  for (const child of processes) child.isOld = true;
  serve();
});
process.once('SIGTERM', () => {
  isEnding = true;
  server.close(() => processes.forEach((child) => child.kill('SIGKILL')));
});
start();
start();
