import { type Bytes, Misconfigured } from './values.js';

/** The application's client: ioredis, or node-redis (client, pool, sentinel), standalone or cluster. */
export type RedisClient =
  | { readonly status: string; readonly options: object; call(command: string, args: any[]): Promise<unknown> }
  | { readonly isOpen: boolean; sendCommand(...args: any[]): Promise<unknown> };

/** One interface to the clients of both libraries. */
export type Redis = {
  readonly isCluster: boolean;
  /** `away`: a command would wait until the client has connected. `closed`: it would fail until the application connects. */
  state(): 'ready' | 'away' | 'closed';
  /** Sends a command. All its keys are in the slot of `key`. */
  send(command: string, args: Bytes[], key: string): Promise<unknown>;
  /** Closes a connection that `connect` made. Its library sends each command once. */
  closeOwn?(): Promise<unknown>;
  /** Leaves a connection that is open and does not reply. */
  reconnect?(): void;
};

/** Those of ioredis; `wait` for the first command. */
const STATES: Record<string, 'ready' | 'closed'> = { ready: 'ready', wait: 'ready', end: 'closed' };

/** Wraps a client. It is recognized by its methods, so any compatible version or copy of a library serves. */
export function wrap(client: RedisClient | Redis): Redis {
  if ('state' in client) return client;
  if ('call' in client && 'status' in client) {
    const options = client.options as { keyPrefix?: string; redisOptions?: { keyPrefix?: string } };
    const prefix = options.keyPrefix || options.redisOptions?.keyPrefix;
    if (prefix) throw new Misconfigured('BADKEY', `use a client without keyPrefix: ioredis adds ${prefix} to the keys of scripts`);
    return {
      isCluster: 'isCluster' in client && client.isCluster === true,
      state: () => STATES[client.status] ?? 'away',
      send: (command, args) => client.call(command, args),
    };
  }
  if (!('sendCommand' in client && 'isOpen' in client)) throw new Misconfigured('LIBRARY', 'expected a client of ioredis or node-redis');
  const isCluster = 'masters' in client;
  const routed = (key: string) => (isCluster ? [key, false] : 'acquire' in client ? [false] : []); // or a sentinel's
  const plain = { typeMapping: {} }; // the application may map replies to other types
  return {
    isCluster,
    state: () => (!client.isOpen ? 'closed' : 'isReady' in client && !client.isReady ? 'away' : 'ready'),
    send: (command, args, key) => client.sendCommand(...routed(key), [command, ...args], plain),
  };
}

/** Returns the code of an error that Redis sent, or undefined if the error is the library's: no reply arrived. */
export function codeOf(error: Error): string | undefined {
  if (error.name !== 'ReplyError' && !isErrorReply(error)) return undefined;
  // Redis 6.2 wraps the errors of commands in a script
  return /^(?:ERR Error running script.*? -)?([A-Z]+)\b/.exec(error.message)?.[1] ?? 'ERR';
}

/** Whether it is of node-redis's class `ErrorReply`, or of one derived from it. */
const isErrorReply = (error: object | null): boolean =>
  error !== null && (error.constructor.name === 'ErrorReply' || isErrorReply(Object.getPrototypeOf(error)));

/** A URL, or the path of a Unix socket; an array of `host:port` for some nodes of a cluster. */
export type Address = string | string[];

/** Connects with settings under which a call ends in time, and is not sent again by the library. */
export async function connect(address: Address, library: string | undefined, timeout: number): Promise<Redis> {
  const module = load(library ? [library] : ['ioredis', 'redis']);
  const isNodeRedis = 'createCluster' in module;
  const client = (isNodeRedis ? nodeRedis : ioredis)(module, address, timeout);
  client.on('error', ignore);
  if (!isNodeRedis) return { ...wrap(client), closeOwn: () => new Promise((ended) => client.once('end', ended).quit().catch(ended)) };
  const open = () => client.connect().catch(ignore);
  await Promise.race([open(), new Promise((resolve) => setTimeout(resolve, timeout))]);
  return { ...wrap(client), closeOwn: async () => client.close(), reconnect: () => (client.destroy(), open()) };
}

function load([name, ...others]: string[]): any {
  try {
    return require(name!);
  } catch (error) {
    if (others.length > 0) return load(others);
    throw new Misconfigured('LIBRARY', 'install ioredis or redis beside counterfoil', error);
  }
}

function ioredis({ Redis, Cluster }: any, address: Address, timeout: number): any {
  const timeouts = { connectTimeout: timeout, commandTimeout: timeout, socketTimeout: timeout };
  if (typeof address === 'string') return new Redis(address, { ...timeouts, retryStrategy: pause, maxRetriesPerRequest: 0 });
  return new Cluster(address.map(node), { clusterRetryStrategy: pause, retryDelayOnFailover: 0, redisOptions: timeouts });
}

function nodeRedis({ createClient, createCluster }: any, address: Address, timeout: number): any {
  const socket = { connectTimeout: timeout, reconnectStrategy: pause };
  if (typeof address === 'string') return createClient(address.startsWith('/') ? { socket: { ...socket, path: address } } : { url: address, socket });
  return createCluster({ rootNodes: address.map((each) => ({ socket: node(each) })), defaults: { socket } });
}

const ignore = (): void => {}; // the call that fails reports it
const pause = (attempt: number): number => Math.min(50 * (attempt + 1), 1000);
const node = (address: string) => ({ host: address.replace(/:\d+$/, ''), port: Number(/:(\d+)$/.exec(address)?.[1] ?? 6379) });
