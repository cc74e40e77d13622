import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Redis, codeOf } from './redis.js';
import { type Bytes, type CounterfoilError, Misconfigured, NotCounted, OutcomeUnknown, memo } from './values.js';

const TEMPORARY = /^(LOADING|BUSY|CLUSTERDOWN|MASTERDOWN|TRYAGAIN|READONLY|MOVED|ASK)$/;
const MISCONFIGURED = /^(NOAUTH|BADARG|BADKEY|CROSSSLOT)$/;
/** Not executed, and a repeat would be refused as well. A call that ended with any other code may be executed in part. */
const REFUSED = /^(OOM|MISCONF|NOREPLICAS|WRONGTYPE|BADSTATE)$/;

/** A call of a script: its keys and arguments. */
export type Call = [keys: string[], args: (Bytes | number)[]];

/** A reply. `isRepeat`: an earlier arrival of the call may have been executed, or may still be. */
export type Reply = { status: string; words: unknown[]; isRepeat: boolean };

const scripts = new Map<string, { source: string; sha1: string }>();

function load(name: string): { source: string; sha1: string } {
  const source = readFileSync(join(__dirname, '..', 'lua', `${name}.lua`));
  return { source: source.toString(), sha1: createHash('sha1').update(source).digest('hex') };
}

/** Sends calls until a reply arrives. */
export class Sender {
  /** Callers without a call in flight, and the numbers of their last ones. Redis remembers each name, so they are used again. */
  readonly callers: { name: string; n: number }[] = [];

  constructor(readonly redis: Redis, private readonly timeout: number, readonly retryFor: number) {}

  /** Sends the call, and repeats it as it is until `deadline`. `counts`: the outcome matters if no reply arrives. `lost`: none did. */
  async send(name: string, [keys, args]: Call, counts: boolean, deadline: number, lost = false): Promise<Reply> {
    const script = memo(scripts, name, () => load(name));
    const rest = [keys.length, ...keys, ...args].map((arg) => (typeof arg === 'number' ? String(arg) : arg));
    let call: [string, Bytes[]] = ['EVALSHA', [script.sha1, ...rest]];
    for (let pause = 5; ; pause = Math.min(2 * pause, 50)) {
      let error: Error;
      const state = this.redis.state();
      if (state === 'closed' && !lost) throw new Misconfigured('CLOSED', 'connect the client; node-redis needs a reconnectStrategy');
      try {
        if (state !== 'ready') throw new Error('the client is not connected');
        const reply = await this.once(...call, keys[0]!);
        const [status, ...words] = Array.isArray(reply) ? reply : [`unexpected reply ${reply}`];
        return { status: String(status), words, isRepeat: lost };
      } catch (thrown) {
        error = thrown as Error;
      }
      const code = codeOf(error);
      lost ||= counts && !code && state === 'ready';
      if (code === 'NOSCRIPT') call = ['EVAL', [script.source, ...rest]];
      else if ((code && !TEMPORARY.test(code)) || performance.now() > deadline) throw failure(error, code, counts, lost);
      else await sleep(pause);
    }
  }

  /** Sends a command once, and waits for its reply until the timeout. */
  private once(command: string, args: Bytes[], key: string): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        if (this.redis.state() === 'ready') this.redis.reconnect?.();
        reject(new Error(`no reply within ${this.timeout} ms`));
      }, this.timeout);
      const settle = (settled: (value: any) => void) => (value: unknown) => (clearTimeout(timer), settled(value));
      this.redis.send(command, args, key).then(settle(resolve), settle(reject));
    });
  }
}

function failure(cause: Error, code: string | undefined, counts: boolean, lost: boolean): CounterfoilError {
  if (lost) return new OutcomeUnknown(code ?? 'no reply', cause.message, cause);
  if (!code || TEMPORARY.test(code)) return new NotCounted(code ?? 'unreachable', cause.message, cause, true);
  if (MISCONFIGURED.test(code) || (code === 'NOPERM' && !counts)) return new Misconfigured(code, cause.message, cause);
  return new (REFUSED.test(code) || !counts ? NotCounted : OutcomeUnknown)(code, cause.message, cause);
}
