// Runs the calls of scenarios with the installed package: a line of JSON for each call on stdin, one for its result on stdout.
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { Counterfoil, CounterfoilError, Misconfigured, NotCounted } from 'counterfoil';
import { Counterfoil as Testing } from 'counterfoil/testing';

const require = createRequire(import.meta.url);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const { open } = JSON.parse((await lines.next()).value);
const library = open.library.replace('node-', '');
const module = library === 'testing' ? undefined : require(library);
const address = open.nodes ?? open.socket;
const timeout = open.timeout && open.timeout * 1000;
const { retry_for, later_every, daemon, token } = open.options ?? {};
const options = {
  ...(retry_for && { retryFor: retry_for * 1000 }),
  ...(later_every && { laterEvery: later_every * 1000 }),
  ...(timeout && { timeout }),
  daemon,
  token,
};

/** Returns a client of the library as an application makes it, and a function that disconnects it. */
async function client() {
  const pause = () => 50;
  const socketTimeout = timeout ?? 400;
  if ('Cluster' in module) {
    const timeouts = { commandTimeout: socketTimeout, socketTimeout };
    const redis = open.nodes
      ? new module.Cluster(open.nodes.map((node) => `redis://${node}`), { redisOptions: timeouts })
      : new module.Redis(open.socket, timeouts);
    redis.on('error', () => {});
    return [redis, () => redis.disconnect()];
  }
  const socket = { socketTimeout, reconnectStrategy: pause };
  const redis = open.nodes
    ? module.createCluster({ rootNodes: open.nodes.map((node) => ({ url: `redis://${node}` })), defaults: { socket, pingInterval: socketTimeout / 2 } })
    : module.createClient({ socket: { ...socket, path: open.socket }, pingInterval: socketTimeout / 2 });
  redis.on('error', () => {});
  await Promise.race([redis.connect(), sleep(socketTimeout)]); // Redis may be down
  return [redis, () => redis.destroy()];
}

async function opened() {
  if (!module) return [new Testing(open.namespace, { ...options, families: open.families }), () => {}];
  if (open.own) return [await Counterfoil.connect(address, open.namespace, { ...options, library: module }), () => {}];
  const [redis, disconnect] = await client();
  return [new Counterfoil(redis, open.namespace, options), disconnect];
}

const CALLS = {
  add_many: async (family, [pairs]) => (await family.addMany(pairs)).map((each) => (each instanceof Error ? failure(each) : each)),
  add_once: (family, args) => family.addOnce(...args),
  incr_once: (family, args) => family.incrOnce(...args),
  request_epoch: (family, args) => family.requestEpoch(...args),
  first_visit: (family, args) => family.firstVisit(...args),
  get: async (family, args) => {
    const value = await family.get(...args);
    return Array.isArray(value) ? value.map(({ start, count }) => [start, count]) : value;
  },
  now: async (family, args) => {
    const { views, visitors } = await family.now(...args);
    return [views, visitors];
  },
};

function failure(error) {
  if (!(error instanceof CounterfoilError)) return { error: 'escaped', reason: `${error?.name} ${error?.message}` };
  const kind = error instanceof NotCounted ? 'not_counted' : error instanceof Misconfigured ? 'misconfigured' : 'outcome_unknown';
  return { error: kind, reason: error.reason, ...(error.value !== undefined && { value: error.value }) };
}

/** Integers beyond 2^53 are strings in the protocol, and bigints in Node. */
function fromWire(value) {
  if (Array.isArray(value)) return value.map(fromWire);
  return typeof value === 'string' && /^-?\d{16,}$/.test(value) ? BigInt(value) : value;
}

function write(line) {
  process.stdout.write(`${JSON.stringify(line, (_, value) => (typeof value === 'bigint' ? String(value) : value))}\n`);
}

async function run({ id, kind, family, call, args = [] }) {
  try {
    const handle = counterfoil[kind](family);
    const own = CALLS[call] ?? ((it, given) => it[call](...given));
    write({ id, returns: (await own(handle, fromWire(args))) ?? null });
  } catch (error) {
    write({ id, ...failure(error) });
  }
}

let counterfoil;
let disconnect;
try {
  [counterfoil, disconnect] = await opened();
  write({ ready: true });
} catch (error) {
  console.error(error);
  process.exit(1);
}
/** Each name is a task, whose calls run in order. */
const tasks = new Map();
for await (const line of lines) {
  const call = JSON.parse(line.replace(/(?<=[[,:] ?)-?\d{16,}(?=[\],}])/g, '"$&"')); // JSON.parse would round long integers
  const task = call.as ?? 'main';
  if (task.startsWith('fork')) write({ id: call.id, skipped: 'Node has no fork: a child process starts anew' });
  else tasks.set(task, (tasks.get(task) ?? Promise.resolve()).then(() => run(call)));
}
await Promise.all(tasks.values());
await counterfoil.close().catch((error) => console.error(error));
disconnect();
