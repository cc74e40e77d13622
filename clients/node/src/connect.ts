import { Misconfigured } from './errors.js';
import { type Redis, wrap } from './redis.js';

/** A URL, or the path of a Unix socket; an array of `host:port` for some nodes of a cluster. */
export type Address = string | string[];

/** Connects with the settings under which a call ends in time, and is not sent again by the library. */
export function connect(address: Address, library: string | undefined, timeout: number): Promise<Redis> {
  const module = load(library ? [library] : ['ioredis', 'redis']);
  return 'createCluster' in module ? nodeRedis(module, address, timeout) : ioredis(module, address, timeout);
}

function load([name, ...others]: string[]): any {
  try {
    return require(name!);
  } catch (error) {
    if (others.length > 0) return load(others);
    throw new Misconfigured('LIBRARY', 'install ioredis or redis beside counterfoil', error);
  }
}

async function ioredis({ Redis, Cluster }: any, address: Address, timeout: number): Promise<Redis> {
  const timeouts = { connectTimeout: timeout, commandTimeout: timeout, socketTimeout: timeout };
  const client = Array.isArray(address)
    ? new Cluster(address.map(node), { clusterRetryStrategy: pause, retryDelayOnFailover: 0, redisOptions: timeouts })
    : new Redis(address, { ...timeouts, retryStrategy: pause, maxRetriesPerRequest: 0 });
  client.on('error', ignore);
  return { ...wrap(client), closeOwn: () => client.quit().catch(ignore) };
}

async function nodeRedis({ createClient, createCluster }: any, address: Address, timeout: number): Promise<Redis> {
  const socket = { connectTimeout: timeout, reconnectStrategy: pause };
  const defaults = { socket: { ...socket, socketTimeout: timeout }, pingInterval: timeout / 2 };
  const client = Array.isArray(address)
    ? createCluster({ rootNodes: address.map((each) => ({ socket: node(each) })), defaults })
    : createClient(address.startsWith('/') ? { socket: { ...socket, path: address } } : { url: address, socket });
  client.on('error', ignore);
  const opened = client.connect();
  if (Array.isArray(address)) await opened.catch((cause: Error) => Promise.reject(new Misconfigured('CLOSED', cause.message, cause)));
  else opened.catch(ignore);
  const own = { ...wrap(client), closeOwn: async () => client.close() };
  return Array.isArray(address) ? own : { ...own, reconnect: () => (client.destroy(), client.connect().catch(ignore)) };
}

// the call that fails reports it
function ignore(): void {}

function pause(attempt: number): number {
  return Math.min(50 * (attempt + 1), 1000);
}

function node(address: string): { host: string; port: number } {
  const [, host, port] = /^\[?(.+?)\]?(?::(\d+))?$/.exec(address) ?? [];
  return { host: host!, port: Number(port ?? 6379) };
}
