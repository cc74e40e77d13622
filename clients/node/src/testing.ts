import { Counterfoil as Real, type Options } from './index.js';
import { type Call, type Reply, Sender } from './call.js';
import type { Family } from './family.js';
import type { Redis } from './redis.js';
import { Daemons } from './value.js';
import { type Integer, Misconfigured, integer, keyOf, upTo } from './values.js';

/** The settings of a family, as `counterfoil.toml` or its table would define them. */
export interface FamilyOptions {
  /** A regular expression that ids match as a whole. */
  ids?: string;
  /** Joins scope and day of visitors. Defaults to `/`. */
  separator?: string;
  /** The bounds of a cached family. */
  min?: Integer;
  max?: Integer;
  /** The labels of a series. Defaults to `60s`, `day` and `month`. */
  windows?: readonly string[];
}

export type TestingOptions = Pick<Options, 'laterEvery' | 'onError'> & { families?: Record<string, FamilyOptions> };

/** Slices of each window. */
const SLICES = 100;
const ACTIVE_MS = 300_000;
const NO_REDIS: Redis = { isCluster: false, connection: () => undefined, state: () => 'ready', send: async () => undefined };

/** The counts of a family. */
class State {
  kind: string | undefined;
  readonly values = new Map<string, bigint>();
  /** The words that were returned for requests, by request and id. */
  readonly requests = new Map<string, string>();
  readonly visitors = new Set<string>();
  readonly hits = new Map<string, { at: number; n: bigint }[]>();
  readonly views = new Map<string, { at: number; views: number; visitors: string[] }[]>();

  constructor(readonly options: FamilyOptions) {}

  get windows(): readonly string[] { return this.options.windows ?? ['60s', 'day', 'month']; }

  /** Sets a value, or returns why not. */
  set(id: string, value: bigint, inRange: boolean): string {
    if (!inRange) return this.kind === 'cached' ? `RANGE:${this.values.get(id) ?? 0}` : 'RANGE';
    this.values.set(id, value);
    return String(value);
  }
}

type Script = (state: State, args: any[], keys: string[]) => unknown[];

/** The scripts, without what makes repeats safe. The arguments of a counting call begin with those of its caller, which are skipped. */
const SCRIPTS: Record<string, Script> = {
  family_epoch(state, [kind]) {
    state.kind ??= kind;
    if (state.kind !== kind) return ['MISMATCH', state.kind, 1, ''];
    const { ids = '[\\s\\S]{1,255}', separator = '/' } = state.options;
    const settings = { ids, ids_in_words: ids, separator, wide: false, labels: state.windows, stripes: 1 };
    return ['OK', 'testing', 'testing', kind, 1, JSON.stringify(settings)];
  },
  buffered_add(state, [, , , , , , count, ...rest]) {
    const add = (id: string, delta: string) => {
      const sum = (state.values.get(id) ?? 0n) + BigInt(delta);
      return state.set(id, sum, sum === BigInt.asIntN(64, sum));
    };
    return ['OK', 0, ...change(state, count, rest, add)];
  },
  cached_incr(state, [, , , , , count, ...rest]) {
    const { min = -(2n ** 53n) + 1n, max = 2n ** 53n - 1n } = state.options;
    return ['OK', ...change(state, count, rest, (id, delta) => {
      const value = delta.startsWith('=') ? BigInt(delta.slice(1)) : (state.values.get(id) ?? 0n) + BigInt(delta);
      return state.set(id, value, value >= min && value <= max);
    })];
  },
  cached_get: (state, [, , , , id]) => ['OK', String(state.values.get(id) ?? 0)],
  series_add(state, [, , , , ...args]) {
    const words = inGroups(args, 3).map(([name, n, at]) => {
      const hit = { at: at === '' ? Date.now() : Number(at), n: BigInt(n) };
      const isKept = state.windows.some((label) => startOf(label, hit.at) >= startOf(label, Date.now(), SLICES - 1));
      if (!isKept || hit.at > Date.now() + 60_000) return 'BADTIME';
      state.hits.set(name, [...(state.hits.get(name) ?? []), hit]);
      return 1;
    });
    return ['OK', 0, ...words];
  },
  series_get(state, [label], keys) {
    const starts = upTo(SLICES).map((i) => startOf(label, Date.now(), SLICES - 1 - i));
    const hits = state.hits.get(lastPart(keys.at(-1)!)) ?? [];
    const counts = starts.map((start) => hits.reduce((sum, { at, n }) => (startOf(label, at) === start ? sum + n : sum), 0n));
    return ['OK', starts.join(' '), counts.join(' ')];
  },
  activity_touch(state, [, , , , , , ...places]) {
    const words = [];
    while (places.length > 0) {
      const [page, views, count] = places.splice(0, 3);
      const view = { at: Date.now(), views: Number(views), visitors: places.splice(0, count).map(keyOf) };
      state.views.set(page, [...(state.views.get(page) ?? []), view]);
      words.push(1);
    }
    return ['OK', 0, ...words];
  },
  activity_now(state, _args, keys) {
    const views = (state.views.get(lastPart(keys[1]!)) ?? []).filter(({ at }) => at > Date.now() - ACTIVE_MS);
    return ['OK', views.reduce((sum, one) => sum + one.views, 0), new Set(views.flatMap(({ visitors }) => visitors)).size];
  },
  visitors_first(state, [, , , , , ...args]) {
    const words = inGroups(args, 3).map(([id, , visitor]) => {
      const key = `${id.length}:${id}${keyOf(visitor)}`;
      if (state.visitors.has(key)) return 0;
      state.visitors.add(key);
      state.values.set(id, (state.values.get(id) ?? 0n) + 1n);
      return 1;
    });
    return ['OK', 0, ...words];
  },
};

/** Makes the changes of a call, each for its request once. */
function change(state: State, count: number, rest: any[], make: (id: string, delta: string) => string): string[] {
  const requests = new Map(inGroups(rest.splice(2 * count), 3).map(([item, name]) => [item - 1, name]));
  return inGroups(rest, 2).map(([id, delta], i) => {
    const request = requests.has(i) ? `${requests.get(i).length}:${requests.get(i)}:${id}` : undefined;
    const before = request && state.requests.get(request);
    if (before) return `BEFORE:${before}`;
    const word = make(id, delta);
    if (request) state.requests.set(request, word);
    return word;
  });
}

const inGroups = (list: any[], size: number): any[][] => upTo(list.length / size).map((i) => list.slice(i * size, (i + 1) * size));

/** Returns the name or page at the end of a key. */
const lastPart = (key: string): string => /\}:\w+:\w+:([^]*)$/.exec(key)![1]!;

/** Returns the start of the slice of a time, or of the slice so many before it, in Unix seconds. */
function startOf(label: string, at: number, before = 0): number {
  const time = new Date(at);
  if (label === 'month') return Date.UTC(time.getUTCFullYear(), time.getUTCMonth() - before) / 1000;
  const seconds = label === 'day' ? 86_400 : Number.parseInt(label, 10);
  return (Math.floor(at / 1000 / seconds) - before) * seconds;
}

/** Makes calls in memory. */
class Memory extends Sender {
  private readonly states = new Map<string, State>();

  constructor(private readonly options: Record<string, FamilyOptions>) { super(NO_REDIS, 1_000, 1_000); }

  stateOf(family: string): State {
    const state = this.states.get(family) ?? new State(this.options[family.split('/')[1]!] ?? {});
    this.states.set(family, state);
    return state;
  }

  override async send(script: string, { keys, args }: Call): Promise<Reply> {
    this.checkOpen();
    const [, family] = /^cf1:\{(.*)\/\d+\}/.exec(keys[0]!)!;
    const [status, ...words] = SCRIPTS[script]!(this.stateOf(family!), args, keys);
    return { status: String(status), words, isRepeat: false };
  }
}

/** Returns values in memory. */
class Values extends Daemons {
  constructor(private readonly memory: Memory) { super([], undefined, 1_000); }

  override async find(family: Family, ids: string[], deadline: number): Promise<Integer[]> {
    family.checkOpen();
    const epoch = await family.describe(deadline);
    const wrong = ids.find((id) => !epoch.ids.test(id));
    if (wrong !== undefined) throw new Misconfigured('HTTP 400', `${wrong} can have no row`);
    return ids.map((id) => integer(this.memory.stateOf(family.name).values.get(id) ?? 0));
  }
}

/**
 * Counts in memory, for tests of an application: the same calls, results and errors without Redis, MySQL or a daemon. Nothing
 * fails, requests are remembered for ever, and a value is what was counted.
 */
export class Counterfoil extends Real {
  constructor(namespace: string, { families = {}, ...options }: TestingOptions = {}) {
    super(NO_REDIS, namespace, options);
    const memory = new Memory(families);
    this.sender = memory;
    this.daemons = new Values(memory);
  }
}
