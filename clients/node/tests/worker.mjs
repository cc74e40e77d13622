// A worker of the job runner in jobs.test.mjs: it runs what its parent sends.
import { Counterfoil } from 'counterfoil';

const [path, namespace] = process.argv.slice(2);
const views = (await Counterfoil.connect(path, namespace, { timeout: 100, retryFor: 300 })).buffered('views');

async function run(job) { // as in the README
  await views.addOnce(job.id, job.data.page, 1, job.data.epoch);
}

process.on('message', (job) => run(job).then(() => process.send({ id: job.id }), ({ message }) => process.send({ id: job.id, error: message })));
