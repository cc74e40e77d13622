import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Redis } from './redis.js';
import { type Bytes, CounterfoilError, Misconfigured, NotCounted, OutcomeUnknown, memo } from './values.js';

const TEMPORARY = /^(no reply|unreachable|LOADING|BUSY|CLUSTERDOWN|MASTERDOWN|NOREPLICAS|TRYAGAIN|READONLY|MOVED|ASK)$/;
const MISCONFIGURED = /^(NOAUTH|BADARG|BADKEY|CROSSSLOT)$/;
/** Not executed, and a repeat would be refused as well. A call that ended with any other code may be executed in part. */
const [FOR_NOW, FOR_GOOD] = [/^(OOM|MISCONF)$/, /^(WRONGTYPE|BADSTATE)$/];

/** The reply on a connection that Redis closes again. */
const FULL = 'ERR max number of clients';

/** A call of a script. */
export type Call = { keys: string[]; args: (Bytes | number)[] };

/** A reply. `isRepeat`: an earlier arrival of the call may have been executed, or may still be. */
export type Reply = { status: string; words: unknown[]; isRepeat: boolean };

/** A call that waits for its reply. */
type Wait = { until: number; reject(error: Error): void };

const scripts = new Map<string, ReturnType<typeof load>>();

function load(name: string) {
  try {
    const source = readFileSync(join(__dirname, '..', 'lua', `${name}.lua`));
    return { source: source.toString(), sha1: createHash('sha1').update(source).digest('hex') };
  } catch (cause) {
    throw new Misconfigured('SCRIPTS', 'a bundler must leave counterfoil external, or it does not find its scripts', cause);
  }
}

/** Sends calls until a reply arrives. */
export class Sender {
  /** Callers without a call in flight, and the numbers of their last ones. Redis remembers each name, so they are used again. */
  readonly callers: { name: string; n: number }[] = [];

  /** In the order of their ends. */
  private readonly waits = new Set<Wait>();
  private timer: NodeJS.Timeout | undefined;

  constructor(readonly redis: Redis, private readonly timeout: number, readonly retryFor: number) {}

  /** Sends the call, and repeats it as it is until `deadline`. `counts`: the outcome matters if no reply arrives. `lost`: none did. */
  async send(name: string, { keys, args }: Call, counts: boolean, deadline: number, lost = false): Promise<Reply> {
    const { source, sha1 } = memo(scripts, name, () => load(name));
    let command = ['EVALSHA', sha1, keys.length, ...keys, ...args].map(word);
    for (let pause = 5; ; pause = Math.min(2 * pause, 50)) {
      const connection = this.redis.connection();
      try {
        const reply = await this.once(command, keys[0]!);
        const [status, ...words] = Array.isArray(reply) ? reply : [`unexpected reply ${reply}`];
        return { status: String(status), words, isRepeat: lost || (counts && this.redis.connection() !== connection) };
      } catch (thrown) {
        const error = thrown as Error;
        const code = codeOf(error);
        // a refusal tells nothing about what the library may have sent before
        const mayFollowAnother = (!connection && code !== 'NOSCRIPT') || this.redis.connection() !== connection;
        if (counts && (code === 'no reply' || (mayFollowAnother && !(error instanceof CounterfoilError)))) lost = true;
        if (code === 'NOSCRIPT') command = ['EVAL', source, ...command.slice(2)];
        else if (!this.redis.isCluster && /^(MOVED|ASK)$/.test(code) && !lost) {
          throw new Misconfigured(code, `use a client for a cluster: ${error.message}`, error);
        } else if (TEMPORARY.test(code) && performance.now() < deadline) await sleep(pause);
        else throw failure(error, code, counts, lost);
      }
    }
  }

  /** Sends a command once, and waits for its reply until the timeout. */
  private once(command: (string | Buffer)[], key: string): Promise<unknown> {
    const state = this.redis.state();
    if (state === 'closed') throw new Misconfigured('CLOSED', 'connect it; node-redis needs a reconnectStrategy');
    const { failure } = this.redis;
    const isUntrusted = /CERT|VERIFY_LEAF/.test((failure as NodeJS.ErrnoException | undefined)?.code ?? '');
    const hint = isUntrusted ? ': the option tlsCa names the authority of the server, tlsVerify: false accepts any' : '';
    const why = `the client is not connected${failure ? `: ${failure.message || failure}${hint}` : ''}`;
    if (state === 'away') throw new NotCounted('unreachable', why, failure, true);
    return new Promise((resolve, reject) => {
      const wait: Wait = { until: performance.now() + this.timeout, reject };
      this.waits.add(wait);
      if (!this.timer) this.endWaits();
      this.redis.send(command, key).then(resolve, reject).finally(() => this.waits.delete(wait));
    });
  }

  /** Ends the waits that are over, and sets the timer for the next one: one for each call would be slow. */
  private endWaits(): void {
    this.timer = undefined;
    for (const wait of this.waits) {
      const left = wait.until - performance.now();
      if (left > 0) {
        this.timer = setTimeout(() => this.endWaits(), left).unref();
        return;
      }
      this.waits.delete(wait);
      wait.reject(new Error(`no reply within ${this.timeout} ms`));
    }
  }
}

/** Returns a word of a command as both libraries take it: of other arrays than a Buffer ioredis would send a text. */
const word = (word: Bytes | number): string | Buffer =>
  word instanceof Uint8Array ? Buffer.from(word.buffer, word.byteOffset, word.byteLength) : String(word);

/** Returns the code of an error that Redis sent, or why there is none. Errors of the libraries begin with no code. */
function codeOf(error: Error): string {
  if (error instanceof CounterfoilError) return error.reason;
  if (error.message.startsWith(FULL)) return 'unreachable';
  // Redis 6.2 wraps the errors of commands in a script. A bundler may have renamed the class of the error.
  return /^(?:ERR Error running script.*? -)?([A-Z]{3,})\b/.exec(error.message)?.[1] ?? 'no reply';
}

function failure(error: Error, code: string, counts: boolean, lost: boolean): CounterfoilError {
  if (lost) return new OutcomeUnknown(code, error.message, error);
  if (error instanceof CounterfoilError) return error;
  if (MISCONFIGURED.test(code) || (code === 'NOPERM' && !counts)) return new Misconfigured(code, error.message, error);
  if (TEMPORARY.test(code) || FOR_NOW.test(code)) return new NotCounted(code, error.message, error, true);
  return new (FOR_GOOD.test(code) || !counts ? NotCounted : OutcomeUnknown)(code, error.message, error);
}
