import { Misconfigured } from './errors.js';
import type { Bytes } from './words.js';

/** The application's client: ioredis, or node-redis (client, pool, sentinel), standalone or cluster. */
export type RedisClient =
  | { readonly status: string; readonly options: object; call(command: string, args: any[]): Promise<unknown> }
  | { readonly isOpen: boolean; sendCommand(...args: any[]): Promise<unknown> };

/** One interface to the clients of both libraries. */
export interface Redis {
  readonly isCluster: boolean;
  /** `away`: a command would wait until the client has connected. `closed`: it would fail until the application connects. */
  state(): 'ready' | 'away' | 'closed';
  /** Sends a command. All its keys are in the slot of `key`. */
  send(command: string, args: Bytes[], key: string): Promise<unknown>;
  /** Closes the connection; only those that `connect` made have it. Their library sends each command once. */
  closeOwn?(): Promise<unknown>;
  /** Leaves a connection that is open and does not reply. */
  reconnect?(): void;
}

/** Wraps a client. It is recognized by its methods, so any compatible version or copy of a library serves. */
export function wrap(client: RedisClient | Redis): Redis {
  if ('state' in client) return client;
  if ('call' in client && 'status' in client) {
    const options = client.options as { keyPrefix?: string; redisOptions?: { keyPrefix?: string } };
    if (options.keyPrefix || options.redisOptions?.keyPrefix) {
      throw new Misconfigured('BADKEY', 'ioredis changes the keys of scripts with keyPrefix: use a client without it');
    }
    return {
      isCluster: 'isCluster' in client && client.isCluster === true,
      state: () => (client.status === 'end' ? 'closed' : /^(ready|wait)$/.test(client.status) ? 'ready' : 'away'),
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
export function codeOf(error: unknown): string | undefined {
  if (!(error instanceof Error && (error.name === 'ReplyError' || isErrorReply(error)))) return undefined;
  // Redis 6.2 wraps the errors of commands in a script
  return /^(?:ERR Error running script.*? -)?([A-Z]+)\b/.exec(error.message)?.[1] ?? 'ERR';
}

/** Whether it is node-redis's class `ErrorReply` or one derived from it. */
function isErrorReply(error: object | null): boolean {
  return error !== null && (error.constructor.name === 'ErrorReply' || isErrorReply(Object.getPrototypeOf(error)));
}
