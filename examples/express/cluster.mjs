// Runs a program in two workers: `node cluster.mjs PROGRAM`. A worker that dies is replaced. SIGHUP replaces all of them, one after
// the other, and refuses no request. SIGTERM ends them.
import cluster from 'node:cluster';
import { once } from 'node:events';

cluster.schedulingPolicy = cluster.SCHED_NONE; // a connection that a killed worker was to receive from this process would hang
cluster.setupPrimary({ exec: process.argv[2] });
const stopped = new Set();
let replacing = Promise.resolve();

function stop(worker) {
  stopped.add(worker);
  worker.process.kill('SIGTERM');
}

async function replace() {
  for (const worker of Object.values(cluster.workers)) {
    if (stopped.has(worker)) continue;
    cluster.fork();
    await once(cluster, 'listening');
    stop(worker);
  }
}

cluster.on('exit', (worker) => stopped.delete(worker) || setTimeout(() => cluster.fork(), 100));
process.on('SIGHUP', () => (replacing = replacing.then(replace)));
process.once('SIGTERM', () => Object.values(cluster.workers).forEach(stop));
cluster.fork();
cluster.fork();
