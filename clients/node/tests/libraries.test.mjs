// The traps of the libraries: options that change keys or replies, connections that close, lost replies.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { test } from 'node:test';
import { Counterfoil, Misconfigured, NotCounted, OutcomeUnknown } from 'counterfoil';
import { LIBRARIES, clientOf, command, commandsOf, configure, daemon, first, namespace, patient, proxyOf, require, socket, unique } from './support.mjs';

/** Reads with another client. */
const valueOf = async (id) => new Counterfoil({ status: 'end', options: {}, call() {} }, namespace, { daemon }).buffered('views').value(id);

const is = (Class, reason) => (error) => error instanceof Class && (!reason || error.reason === reason);

for (const library of LIBRARIES) {
  test(`${library}: counts over a client of the application`, async (t) => {
    const views = new Counterfoil(await clientOf(t, library), namespace, { ...patient, daemon }).buffered('views');
    const id = unique('page');
    assert.equal(await views.add(id), 1);
    assert.equal((await views.addMany({ [id]: 41, [`${id}/2`]: 5 }))[1], 5);
    assert.equal(await views.value(id), 42);
  });

  test(`${library}: a tracer that formats commands changes no outcome`, async (t) => {
    const redis = await clientOf(t, library);
    const method = redis.call ? 'call' : 'sendCommand';
    const send = redis[method].bind(redis);
    redis[method] = (...args) => send(...args, ...(args.flat().map(String).join(' ') ? [] : [args]));
    const views = new Counterfoil(redis, namespace, { ...patient, laterEvery: 60_000 }).buffered('views');
    const id = unique('page');
    await views.add(id);
    await command('CONFIG', 'SET', 'maxmemory', 1);
    try {
      for (const number of Array(7).keys()) views.later(`${id}/${number}`);
      await assert.rejects(views.flush(), (error) => is(NotCounted, 'OOM')(error) && error.temporary);
    } finally {
      await command('CONFIG', 'SET', 'maxmemory', 0);
    }
    await views.flush();
    for (const number of Array(7).keys()) assert.equal(await views.add(`${id}/${number}`), 2);
  });

  test(`${library}: a connection of its own; close ends it`, async () => {
    const counterfoil = await Counterfoil.connect(socket, namespace, { ...patient, library: require(library), daemon });
    const id = unique('page');
    assert.equal(await counterfoil.buffered('views').add(id), 1);
    counterfoil.buffered('views').later(id, 2);
    await counterfoil.close();
    const [views, votes, readers] = [counterfoil.buffered('views'), counterfoil.cached('votes'), counterfoil.activity('readers')];
    const calls = [() => views.add(id), () => views.value(id, 7), () => votes.incr(id), () => readers.now(id), () => views.flush(), () => counterfoil.flush()];
    const closed = { name: 'NotCounted', reason: 'CLOSED', message: /the client is closed/ };
    for (const call of calls) await assert.rejects(call, closed);
    for (const name of ['views', 'another']) assert.throws(() => counterfoil.buffered(name).later(id), closed);
    await counterfoil.close();
    assert.equal(await valueOf(id), 3, 'close sent what later() took');
  });

  test(`${library}: a cluster that is unreachable at first is tried again`, { timeout: 10_000 }, async () => {
    const listen = (port) => once(server.listen(port, '127.0.0.1'), 'listening');
    const server = createServer((connection) => connection.destroy());
    await listen(0);
    const { port } = server.address();
    server.close();
    const counterfoil = await Counterfoil.connect([`127.0.0.1:${port}`], namespace, { ...patient, library: require(library), timeout: 200, retryFor: 300 });
    const isAway = (error) => error instanceof NotCounted && error.reason === 'UNREACHABLE' && !/not connected/.test(error.message);
    await assert.rejects(counterfoil.buffered('views').add('page'), isAway);
    const connection = once(server, 'connection');
    await listen(port);
    await connection;
    await counterfoil.close();
    server.close();
    await assert.rejects(Counterfoil.connect('http://localhost', namespace, { ...patient, library: require(library) }), is(Misconfigured, 'ADDRESS'));
  });

  test(`${library}: close returns while Redis is unreachable, and while it does not reply`, { timeout: 30_000 }, async (t) => {
    for (const isAway of [true, false]) {
      const proxy = await proxyOf(t);
      const counterfoil = await Counterfoil.connect(proxy.path, namespace, { ...patient, library: require(library), timeout: 200, retryFor: 500 });
      const views = counterfoil.buffered('views');
      await views.add('page');
      Object.assign(proxy, { isAway, fate: () => 'silence' });
      if (isAway) for (const connection of proxy.connections) connection.destroy();
      await new Promise((resolve) => setTimeout(resolve, 50));
      views.later('page');
      await assert.rejects(counterfoil.close(), /later\(\)/);
      await assert.rejects(views.add('page'), is(NotCounted, 'CLOSED'));
      await counterfoil.close();
    }
  });

  test(`${library}: a visitor of bytes may be any Uint8Array`, async (t) => {
    const counterfoil = new Counterfoil(await clientOf(t, library), namespace, patient);
    const [shop, page, bytes] = [unique('shop'), unique('page'), Uint8Array.of(0, 200, 201).subarray(1)];
    for (const visitor of [bytes, Buffer.from(bytes)]) {
      assert.equal(await counterfoil.visitors('daily').firstVisit(shop, '2026-11-25', visitor), visitor === bytes);
      await counterfoil.activity('readers').touch(page, visitor);
    }
    assert.deepEqual(await counterfoil.activity('readers').now(page), { views: 2, visitors: 1 });
  });

  for (const own of [false, true]) {
    const how = own ? 'its own connection' : "the application's client";
    test(`${library}: a reply that is lost with ${how} counts once`, async (t) => {
      const proxy = await proxyOf(t);
      const options = { timeout: 200, retryFor: 5000, daemon };
      const counterfoil = own
        ? await Counterfoil.connect(proxy.path, namespace, { ...patient, ...options, library: require(library) })
        : new Counterfoil(await clientOf(t, library, proxy.path, library.startsWith('ioredis') ? { socketTimeout: 200 } : {}), namespace, { ...patient, ...options });
      const [views, id] = [counterfoil.buffered('views'), unique('page')];
      await views.add(id);
      // node-redis alone would wait for its socketTimeout
      const fates = own || library.startsWith('ioredis') ? ['cut', 'silence'] : ['cut'];
      for (const fate of fates) {
        proxy.fate = first(2, fate);
        assert.equal(await views.add(id), null, fate);
      }
      assert.equal(await views.value(id), 1 + fates.length);
      await counterfoil.close();
    });
  }

  test(`${library}: SCRIPT FLUSH, and a client in a MULTI`, async (t) => {
    const redis = await clientOf(t, library);
    const views = new Counterfoil(redis, namespace, { ...patient, daemon }).buffered('views');
    const id = unique('page');
    await views.add(id);
    await command('SCRIPT', 'FLUSH');
    await views.add(id);
    assert.equal(await views.value(id), 2);
    await (redis.call ? redis.call('MULTI') : redis.sendCommand(['MULTI']));
    await assert.rejects(views.add(id), is(OutcomeUnknown));
  });

  test(`${library}: a bundler may have renamed the classes of errors`, async (t) => {
    const redis = await clientOf(t, library);
    const views = new Counterfoil(redis, namespace, patient).buffered('views');
    const method = redis.call ? 'call' : 'sendCommand';
    const send = redis[method].bind(redis);
    redis[method] = (...args) => send(...args).catch(({ message }) => Promise.reject(new (class a extends Error {})(message)));
    await command('SCRIPT', 'FLUSH');
    assert.equal(await views.add(unique('page')), 1);
  });

  test(`${library}: without a connection nothing is counted, and later() keeps its sums`, async (t) => {
    const proxy = await proxyOf(t);
    const redis = await clientOf(t, library, proxy.path);
    await redis.ping();
    const [views, reader] = [200, 10_000].map((retryFor) => new Counterfoil(redis, namespace, { retryFor, daemon }).buffered('views'));
    const id = unique('page');
    await views.add(id);
    proxy.isAway = true;
    for (const connection of proxy.connections) connection.destroy();
    while (redis.status === 'ready' || redis.isReady) await new Promise(setImmediate);
    views.later(id, 5);
    await assert.rejects(views.add(id), (error) => error instanceof NotCounted && error.temporary);
    await assert.rejects(views.flush(), (error) => error instanceof NotCounted && error.temporary && /1 sums/.test(error.message));
    proxy.isAway = false;
    while (await views.flush().then(() => false, () => true));
    assert.equal(await reader.value(id), 6);
  });
}

test('ioredis: a key prefix is an error that names it', async (t) => {
  for (const library of LIBRARIES.filter((one) => one.startsWith('ioredis'))) {
    const redis = await clientOf(t, library, socket, { keyPrefix: 'app:' });
    assert.throws(() => new Counterfoil(redis, namespace, patient), (error) => is(Misconfigured, 'BADKEY')(error) && /keyPrefix.*app:/.test(error.message));
  }
});

test('ioredis: options that change replies or resends', async (t) => {
  for (const options of [{ stringNumbers: true }, { autoResendUnfulfilledCommands: false }, { enableAutoPipelining: true }, { lazyConnect: true }, { protocol: 2 }]) {
    const views = new Counterfoil(await clientOf(t, 'ioredis', socket, options), namespace, patient).buffered('views');
    const id = unique('page');
    assert.deepEqual(await views.addMany([[id, 1], [id, 2]]), [1, 3], JSON.stringify(options));
  }
});

/** Closes the connection, and returns when there is another. */
async function reconnected(redis) {
  redis.stream.destroy();
  await once(redis, 'ready');
}

test('ioredis: a refusal over the connection that a call was sent over tells that it was not counted', async (t) => {
  for (const library of LIBRARIES.filter((one) => one.startsWith('ioredis'))) {
    const redis = await clientOf(t, library);
    const views = new Counterfoil(redis, namespace, { ...patient, retryFor: 300 }).buffered('views');
    await views.add(unique('page'));
    for (const refusal of ['OOM command', 'MISCONF Redis', 'LOADING Redis']) { // the last one begins an outage
      redis.call = async () => {
        throw new Error(`${refusal} ...`);
      };
      await assert.rejects(views.add(unique('page')), { name: 'NotCounted', reason: refusal.split(' ')[0], temporary: true });
    }
  }
});

test('ioredis: a refusal tells nothing about what the library has sent before over a connection that was lost', async (t) => {
  for (const library of LIBRARIES.filter((one) => one.startsWith('ioredis'))) {
    for (const refusal of ['READONLY You', 'LOADING Redis', 'BUSY Redis', 'NOAUTH Authentication', 'OOM command', 'MISCONF Redis']) {
      const redis = await clientOf(t, library);
      const [id, onError] = [unique('page'), t.mock.fn()];
      const options = { ...patient, daemon, onError };
      const [views, sums, reader] = [300, 300, 10_000].map((retryFor) => new Counterfoil(redis, namespace, { ...options, retryFor }).buffered('views'));
      for (const family of [views, sums]) await family.add(id);
      const { call } = redis;
      redis.call = async (...args) => {
        await call.apply(redis, args);
        await reconnected(redis);
        throw new Error(`${refusal} ...`);
      };
      await assert.rejects(views.add(id, 10), is(OutcomeUnknown));
      sums.later(id, 100); // not those of an outage
      await assert.rejects(sums.flush(), is(OutcomeUnknown));
      redis.call = call;
      await sums.flush();
      assert.equal(await reader.value(id), 112, 'a sum that Redis may have is not sent again');
      assert.equal(onError.mock.callCount(), 1);
    }
  }
});

test('a server without a connection to spare did not execute a call', async (t) => {
  for (const library of ['ioredis', 'redis']) {
    const redis = await clientOf(t, library);
    const views = new Counterfoil(redis, namespace, { ...patient, retryFor: 300 }).buffered('views');
    await views.add(unique('page'));
    const method = t.mock.method(redis, redis.call ? 'call' : 'sendCommand', async () => {
      throw new Error('ERR max number of clients reached');
    });
    await assert.rejects(views.add(unique('page')), { name: 'NotCounted', reason: 'UNREACHABLE', temporary: true });
    assert.ok(method.mock.callCount() > 1, 'it is repeated');
  }
});

test('node-redis: replies as buffers, RESP2 and RESP3, a pool', async (t) => {
  for (const library of LIBRARIES.filter((one) => one.startsWith('redis'))) {
    const { RESP_TYPES, createClientPool } = require(library);
    const buffers = { typeMapping: { [RESP_TYPES.BLOB_STRING]: Buffer, [RESP_TYPES.SIMPLE_STRING]: Buffer, [RESP_TYPES.NUMBER]: String } };
    const pool = createClientPool({ socket: { path: socket } });
    await pool.connect();
    t.after(() => pool.destroy());
    const clients = [pool];
    for (const options of [{ RESP: 2 }, { RESP: 3 }, { commandOptions: buffers }]) clients.push(await clientOf(t, library, socket, options));
    for (const client of clients) {
      const id = unique('page');
      assert.deepEqual(await new Counterfoil(client, namespace, patient).buffered('views').addMany([[id, 1], [id, 2]]), [1, 3]);
    }
  }
});

test('node-redis: a client that is closed for good is an error that says why', async (t) => {
  const proxy = await proxyOf(t);
  const client = await clientOf(t, 'redis', proxy.path, { socket: { socketTimeout: 500, reconnectStrategy: undefined } });
  const views = new Counterfoil(client, namespace, { ...patient, timeout: 300 }).buffered('views');
  while (client.isOpen) await new Promise((resolve) => setTimeout(resolve, 10));
  await assert.rejects(views.add('page'), (error) => is(Misconfigured, 'CLOSED')(error) && /reconnectStrategy/.test(error.message));
});

const { COUNTERFOIL_TEST_TLS: tlsAddress, COUNTERFOIL_TEST_CA: tlsCa } = process.env;
for (const library of LIBRARIES) {
  test(`${library}: a server with a certificate of its own`, { skip: !tlsAddress }, async () => {
    const refusal = async (options) => {
      const counterfoil = await Counterfoil.connect(tlsAddress, namespace, { ...patient, library: require(library), retryFor: 1000, ...options });
      const error = await counterfoil.buffered('views').add('page').catch((thrown) => thrown);
      await counterfoil.close();
      return `${error.constructor.name} ${error.message}`;
    };
    assert.match(await refusal({}), /NotCounted.*tlsCa/);
    assert.match(await refusal({ tlsCa }), /UNCONFIGURED/);
    assert.match(await refusal({ tlsVerify: false }), /UNCONFIGURED/);
    await assert.rejects(Counterfoil.connect('redis://localhost', namespace, { ...patient, library: require(library), tlsCa }), is(Misconfigured, 'OPTIONS'));
  });
}

test('something else than a client is an error', () => {
  for (const value of [{}, new Map()]) assert.throws(() => new Counterfoil(value, namespace, patient), is(Misconfigured, 'LIBRARY'));
  assert.throws(() => new Counterfoil({ status: 'ready', options: {}, call() {} }, namespace, { ...patient, retryFor: 31_000 }), is(Misconfigured, 'OPTIONS'));
});

test('errors: kinds, names and arguments', async (t) => {
  const counterfoil = new Counterfoil(await clientOf(t, 'ioredis'), namespace, patient);
  await assert.rejects(counterfoil.buffered('typo').add('page'), (error) => is(NotCounted, 'UNCONFIGURED')(error) && error.temporary && /counterfoil.toml/.test(error.message));
  await assert.rejects(counterfoil.cached('views').get('page'), { name: 'Misconfigured', reason: 'MISMATCH', message: /views is buffered, not cached/ });
  assert.throws(() => counterfoil.buffered('No Name'), is(Misconfigured, 'NAME'));
  const views = counterfoil.buffered('views');
  for (const id of ['', 'x'.repeat(256), '\ud800', 0.5, 2 ** 53, true, null]) await assert.rejects(views.add(id), is(NotCounted, 'BADID'));
  const number = Date.now() * 1000;
  assert.deepEqual([await views.add(number), await views.add(BigInt(number)), await views.add(`${number}`)], [1, 2, 3]);
  assert.deepEqual([await views.addMany([[number, 1]]), await valueOf(number)], [[4], 4]);
  for (const delta of [0.5, NaN, 2 ** 53, 2n ** 63n, '1', null]) await assert.rejects(views.add('page', delta), is(NotCounted, 'BADARG'));
  for (const day of ['2026-02-30', '2026-13-01', '2026-2-3', '2026-02', 'null', null, undefined]) {
    await assert.rejects(counterfoil.visitors('daily').firstVisit('shop', day, 'visitor'), is(NotCounted, 'BADID'), day);
  }
  await counterfoil.visitors('daily').firstVisit('shop', '2024-02-29', 'visitor');
  const id = unique('page');
  const [big, beyond, small] = await views.addMany([[id, 2n ** 53n + 1n], [id, 2n ** 63n - 1n], [id, -(2n ** 53n)]]);
  assert.deepEqual([big, beyond.reason, small], [2n ** 53n + 1n, 'RANGE', 1]);
  for (const pair of [null, 7, {}, 'id']) await assert.rejects(views.addMany([[`${id}-none`, 1], pair]), is(NotCounted, 'BADARG'));
  assert.equal(await views.add(`${id}-none`), 1);
});

test('a family that no daemon has configured: one call waits, and a probe each second asks again', async (t) => {
  const redis = await clientOf(t, 'ioredis');
  const name = unique('family');
  await command('DEL', 'cf1:wanted');
  const counterfoil = new Counterfoil(redis, namespace, { retryFor: 1_000, timeout: 1_000, daemon });
  const [views, commands] = [counterfoil.buffered(name), commandsOf(redis)];
  const unconfigured = (error) => is(NotCounted, 'UNCONFIGURED')(error) && error.temporary && error.message.includes('counterfoil.toml');
  await assert.rejects(views.add('page'), unconfigured);
  assert.ok(commands.calls < 14, `${commands.calls}`); // one each 200 ms, and two more that load scripts
  const before = commands.calls;
  for (let i = 0; i < 50; i += 1) await assert.rejects(i % 2 ? views.add('page') : views.requestEpoch('job', 'page'), unconfigured);
  assert.ok(commands.calls - before <= 4, `${commands.calls - before}`); // only those of probes
  const probed = commands.calls;
  while (commands.calls < probed + 2) await new Promise((resolve) => setTimeout(resolve, 10));
  await configure(name, 1);
  while (await views.requestEpoch('job', 'page').then(() => false, unconfigured)) await new Promise((resolve) => setTimeout(resolve, 10));
  assert.equal(await views.add('page'), 1);
});

test('a family that the daemon refuses: an error at once with its reason, and sums wait until it has accepted it', async (t) => {
  const redis = await clientOf(t, 'ioredis');
  const call = redis.call.bind(redis);
  const warning = once(process, 'warning');
  redis.call = async (command, args) => {
    const reply = await call(command, args);
    return Array.isArray(reply) && reply[0] === 'UNCONFIGURED' ? ['UNCONFIGURED', 'table views: column n is latin1'] : reply;
  };
  const refused = new Counterfoil(redis, namespace, patient).buffered('refused');
  const begun = performance.now();
  const is = { name: 'Misconfigured', reason: 'UNCONFIGURED', message: /the daemon refuses own\/refused: table views/ };
  await assert.rejects(refused.add('page'), is);
  assert.ok(performance.now() - begun < 400);
  refused.later('page', 3);
  await assert.rejects(refused.flush(), { name: 'Misconfigured', message: /1 sums wait/ });
  assert.match((await warning)[0].message, /later\(\) of own\/refused: sums wait: UNCONFIGURED/);
  await configure('refused', 1);
  await refused.flush();
  assert.equal(await refused.add('page'), 4);
});

test('a name that another process used is not used again', async (t) => {
  const redis = await clientOf(t, 'ioredis');
  const call = redis.call.bind(redis);
  const names = [];
  redis.call = (command, args) => {
    const isCall = args[1] === '4' && !String(args[4]).endsWith(':requests');
    if (isCall) names.push(args[6]);
    return isCall && names.length === 1 ? Promise.resolve(['PASSED']) : call(command, args);
  };
  const views = new Counterfoil(redis, namespace, patient).buffered('views');
  const id = unique('page');
  await assert.rejects(views.add(id), is(OutcomeUnknown, 'PASSED'));
  assert.equal(await views.add(id), 1);
  assert.equal(new Set(names).size, 2);
});

test('a copy of this machine, with the same state of its random numbers, draws other names', async (t) => {
  t.mock.method(require('node:crypto'), 'randomBytes', (size) => Buffer.alloc(size, 7));
  const [redis, id] = [await clientOf(t, 'ioredis'), unique('page')];
  for (const sum of [1, 2]) assert.equal(await new Counterfoil(redis, namespace, patient).buffered('views').add(id), sum);
});
