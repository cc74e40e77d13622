// The README's job under the schedule of a queue: attempts with growing pauses, lost replies, and workers that are killed.
import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Counterfoil } from 'counterfoil';
import { clientOf, daemon, namespace, proxyOf, unique } from './support.mjs';

const STALLED = 'stalled'; // it is not counted as an attempt
const [JOBS, ATTEMPTS, WORKERS, CONCURRENCY] = [100, 12, 3, 5];

/** Runs jobs as BullMQ does: if a worker is killed, another one runs its job again. */
class Runner {
  attempts = 0;

  constructor(path) { this.path = path; }

  start(t) {
    this.workers = Array.from({ length: WORKERS }, () => this.worker());
    t.after(() => this.workers.forEach((worker) => worker.kill('SIGKILL')));
  }

  worker() { return fork(new URL('worker.mjs', import.meta.url), [this.path, namespace]).setMaxListeners(0); }

  /** Runs one attempt, and returns an error if it failed. */
  async attempt(number, job) {
    const worker = this.workers[number % WORKERS];
    this.attempts += 1;
    worker.send(job);
    for (;;) {
      const [reply] = await Promise.race([once(worker, 'message'), once(worker, 'exit')]);
      if (typeof reply !== 'object' || reply === null) return STALLED;
      if (reply.id === job.id) return reply.error;
    }
  }

  async run(number, job) {
    let error;
    for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
      do error = await this.attempt(number + this.attempts, job);
      while (error === STALLED);
      if (!error) return;
      await sleep(Math.min(10 * 2 ** attempt, 1000));
    }
    throw new Error(`${job.id} has failed: ${error}`);
  }

  async kill() {
    const number = Math.floor(Math.random() * WORKERS);
    const killed = this.workers[number];
    this.workers[number] = this.worker();
    killed.kill('SIGKILL');
    await once(killed, 'exit');
  }
}

test('each job counts once', { timeout: 60_000 }, async (t) => {
  const proxy = await proxyOf(t);
  const views = new Counterfoil(await clientOf(t, 'ioredis'), namespace, { daemon, retryFor: 10_000 }).buffered('views');
  const page = unique('page');
  const jobs = await Promise.all(Array.from({ length: JOBS }, async () => {
    const id = unique('job');
    return { id, data: { page, epoch: await views.requestEpoch(id, page) } }; // before it is enqueued
  }));
  const runner = new Runner(proxy.path);
  runner.start(t);
  proxy.fate = (data) => (/EVALSHA/i.test(data) && Math.random() < 0.1 ? ['cut', 'silence'][Math.floor(Math.random() * 2)] : 'pass');
  let isOver = false;
  const killing = (async () => {
    while (!isOver) {
      await sleep(1000);
      await runner.kill();
    }
  })();
  const lines = Array.from({ length: WORKERS * CONCURRENCY }, async (_, number) => {
    for (let job = jobs.pop(); job; job = jobs.pop()) await runner.run(number, job);
  });
  await Promise.all(lines);
  isOver = true;
  await killing;
  assert.equal(await views.value(page), JOBS);
  assert.ok(runner.attempts > JOBS, `${runner.attempts} attempts`);
});
