import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { Misconfigured } from './values.js';

/** The application's client: ioredis, or node-redis (client, pool, sentinel), standalone or cluster. */
export type RedisClient =
  | { readonly status: string; readonly options: object; call(command: string, args: any[]): Promise<unknown> }
  | { readonly isOpen: boolean; sendCommand(...args: any[]): Promise<unknown> };

/** One interface to the clients of both libraries. */
export type Redis = {
  readonly isCluster: boolean;
  /**
   * Returns the current connection, undefined if it is not known. If it is the same before and after a command, the library has sent
   * the command once: it sends one again over another connection only.
   */
  connection(): unknown;
  /** Returns `away` if a command would wait until the client has connected, `closed` if it would fail until the application connects. */
  state(): 'ready' | 'away' | 'closed';
  /** Sends a command. All its keys are in the slot of `key`. */
  send(command: (string | Buffer)[], key: string): Promise<unknown>;
  /** Closes a connection that `connect` made. Its library sends each command once. */
  closeOwn?(): Promise<unknown>;
  /** Why a connection that `connect` made was lost, or not made. */
  failure?: Error;
};

/** The states of ioredis that are not `away`. In `wait` it connects for the first command. */
const STATES: Record<string, 'ready' | 'closed'> = { ready: 'ready', wait: 'ready', end: 'closed' };

/** Wraps a client. It is recognized by its methods, so any compatible version or copy of a library serves. */
export function wrap(client: any): Redis {
  if ('state' in client) return client; // made by `connect`
  if ('call' in client && 'status' in client) return wrapIoredis(client);
  if ('sendCommand' in client && 'isOpen' in client) return wrapNodeRedis(client);
  throw new Misconfigured('LIBRARY', 'expected a client of ioredis or node-redis');
}

function wrapIoredis(client: any): Redis {
  const prefix = client.options.keyPrefix || client.options.redisOptions?.keyPrefix;
  if (prefix) throw new Misconfigured('BADKEY', `use a client without keyPrefix: ioredis adds ${prefix} to keys`);
  return {
    isCluster: client.isCluster === true,
    connection: () => (client.isCluster ? undefined : client.stream),
    state: () => STATES[client.status] ?? 'away',
    send: ([name, ...args]) => client.call(name, args),
  };
}

function wrapNodeRedis(client: any): Redis {
  const isCluster = 'masters' in client;
  const isSentinel = 'acquire' in client;
  const route = (key: string) => (isCluster ? [key, false] : isSentinel ? [false] : []);
  const options = { typeMapping: {} }; // a mapping of the application would change the types in replies
  return {
    isCluster,
    connection: () => (isSentinel ? undefined : client),
    state: () => (!client.isOpen ? 'closed' : client.isReady === false ? 'away' : 'ready'),
    send: (command, key) => client.sendCommand(...route(key), command, options),
  };
}

/** A URL, or the path of a Unix socket; an array of `host:port` for some nodes of a cluster. */
export type Address = string | string[];

/** Options of connections with TLS, as Node has them. */
type Tls = { ca?: string; rejectUnauthorized?: boolean };

/** Options of a connection. */
export type ConnectionOptions = {
  /** The name of a library, or its module, such as `await import('redis')`. Defaults to ioredis if that is installed, or else to redis. */
  library?: 'ioredis' | 'redis' | object;
  /** With `rediss://` the file of the authority that signed the server's certificate, in PEM. */
  tlsCa?: string;
  /** False accepts any certificate. */
  tlsVerify?: boolean;
};

type Times = { retryFor?: number; timeout?: number };

const TLS_URL = /^rediss:\/\//;
/** The longest time that a connection may take to end. */
const END_MS = 500;

/** Returns how long a call may take, and how long connecting and a reply may take each. */
export function timesOf({ retryFor = 1_000, timeout = Math.min(400, 0.4 * retryFor) }: Times): Required<Times> {
  if (retryFor > 0 && retryFor <= 30_000 && timeout > 0) return { retryFor, timeout };
  throw new Misconfigured('OPTIONS', 'expected retryFor of 1 to 30000 ms, and a positive timeout');
}

/** Returns how long to wait before the next attempt to connect. It grows up to a second. */
const reconnectAfter = (attempts: number): number => Math.min(50 * (attempts + 1), 1_000);

/** Connects with settings under which a call ends in time, and is not sent again by the library. */
export async function connect(address: Address, options: ConnectionOptions & Times): Promise<Redis> {
  const { timeout } = timesOf(options);
  const module = await load(options.library);
  const isAddress = Array.isArray(address) || /^(rediss?:\/\/|\/)/.test(address);
  if (!isAddress) throw new Misconfigured('ADDRESS', `expected redis://, rediss:// or the path of a socket, not ${address}`);
  return ('createCluster' in module ? connectNodeRedis : connectIoredis)(module, address, timeout, tlsOf(address, options));
}

/** Returns the options of TLS if the address has it. */
function tlsOf(address: Address, { tlsCa, tlsVerify = true }: ConnectionOptions): Tls | undefined {
  const hasTls = [address].flat().some((node) => TLS_URL.test(node));
  if (!hasTls && (tlsCa || !tlsVerify)) throw new Misconfigured('OPTIONS', 'tlsCa and tlsVerify need an address with rediss://');
  try {
    return hasTls ? { ...(tlsCa && { ca: readFileSync(tlsCa, 'utf8') }), ...(!tlsVerify && { rejectUnauthorized: false }) } : undefined;
  } catch (cause) {
    throw new Misconfigured('OPTIONS', `tlsCa: ${(cause as Error).message}`, cause);
  }
}

/**
 * Returns the functions and classes of a library. Bundlers look for the text `import('NAME')`. In a `try` they accept that the package
 * is not installed.
 */
async function load(library: ConnectionOptions['library']): Promise<any> {
  if (typeof library === 'object') return exportsOf(library);
  let failure: unknown;
  try {
    if (library !== 'redis') return exportsOf(await import('ioredis'));
  } catch (error) {
    failure = error;
  }
  try {
    if (library !== 'ioredis') return exportsOf(await import('redis'));
  } catch (error) {
    failure = error;
  }
  throw new Misconfigured('LIBRARY', `install ${library ?? 'ioredis or redis'} beside counterfoil`, failure);
}

/** Returns what a module exports, which may be an ECMAScript module or the object of a CommonJS one. */
const exportsOf = (module: any): any => ('Cluster' in module || 'createCluster' in module ? module : module.default);

function connectIoredis({ Redis, Cluster }: any, address: Address, timeout: number, tls?: Tls): Redis {
  const settings = { connectTimeout: timeout, socketTimeout: timeout, retryStrategy: reconnectAfter, ...(tls && { tls }) };
  const client = typeof address === 'string'
    ? new Redis({ ...settings, maxRetriesPerRequest: 0 }, address) // these settings prevail over those in the URL
    : new Cluster(address, { retryDelayOnFailover: 0, clusterRetryStrategy: reconnectAfter, redisOptions: settings });
  const quit = () => {
    // a handshake of TLS that is closed may fail twice, and ioredis handles one failure: the other one would end the process
    for (const node of client.nodes?.() ?? [client]) node.stream?.on('error', ignore);
    return client.quit();
  };
  return own(client, timeout, quit, () => client.disconnect());
}

async function connectNodeRedis(module: any, address: Address, timeout: number, tls?: Tls): Promise<Redis> {
  const target = typeof address === 'string' && address.startsWith('/') ? { path: address } : {};
  const times = { connectTimeout: timeout, socketTimeout: timeout, reconnectStrategy: reconnectAfter };
  const defaults = { socket: { ...times, ...target, ...(tls && { tls: true, ...tls }) }, pingInterval: timeout / 2 };
  const client = Array.isArray(address)
    ? module.createCluster({ rootNodes: address.map((node) => ({ url: TLS_URL.test(node) ? node : `redis://${node}` })), defaults })
    : module.createClient('path' in target ? defaults : { ...defaults, url: address });
  const redis = own(client, timeout, () => client.close(), () => client.destroy());
  const attempt = async (attempts = 0): Promise<void> => {
    try {
      await client.connect();
    } catch (error) { // the client of a cluster does not try again by itself
      redis.failure = error as Error;
      const repeat = () => { if (redis.state() !== 'closed') void attempt(attempts + 1); };
      setTimeout(repeat, reconnectAfter(attempts)).unref();
    }
  };
  await Promise.race([attempt(), sleep(timeout, undefined, { ref: false })]);
  return redis;
}

/** Wraps a client that `connect` made. `closeOwn` calls `end`, which waits for replies, and after that or the timeout `stop`. */
function own(client: any, timeout: number, end: () => Promise<unknown>, stop: () => void): Redis {
  const redis = wrap(client);
  let isClosed = false;
  const closeOwn = async () => {
    isClosed = true;
    const late = new AbortController(); // the timer keeps the process alive until the connection has ended, and no longer
    const ended = Promise.race([end(), sleep(Math.min(timeout, END_MS), undefined, { signal: late.signal })]);
    await ended.catch(ignore).then(stop).catch(ignore); // `end` and `stop` may throw if the client is closed already
    late.abort();
  };
  const state = () => (isClosed ? 'closed' : redis.state() === 'ready' ? 'ready' : 'away');
  const own: Redis = { ...redis, connection: () => client, closeOwn, state };
  client.on('error', (error: Error) => { own.failure = error; });
  return own;
}

const ignore = (): void => {}; // the call that fails reports it
