// Compiled by a test, and not run.
import { Cluster, Redis } from 'ioredis';
import { Redis as Redis5 } from 'ioredis-5';
import { createClient, createClientPool, createCluster } from 'redis';
import { createClient as createClient5 } from 'redis-5';
import { Counterfoil, type Integer, NotCounted, type OnError } from 'counterfoil';
import { Counterfoil as Testing } from 'counterfoil/testing';

const clients = [new Redis(), new Redis5(), new Cluster([]), createClient(), createClient5(), createClientPool(), createCluster({ rootNodes: [] })];
for (const client of clients) new Counterfoil(client, 'shop');
const counterfoil = new Counterfoil(createClient({ RESP: 3 }), 'shop', { daemon: ['http://a:1', 'http://b:1'], retryFor: 5000 });
const pending: Integer | null = await counterfoil.buffered('views').add('page', 1n);
const values: Integer[] = await counterfoil.buffered('views').values(new Set(['page']));
const shown: Integer = await counterfoil.cached('votes').value('1', (error: NotCounted) => error.reason.length);
const listed: Integer[] = await counterfoil.buffered('views').values(['a', 'b'], async () => [1, 2n]);
const days: Integer[] = await counterfoil.visitors('daily').values([['12', '2026-11-25']]);
const value: Integer = await counterfoil.cached('votes', { readRow: async (id: string) => id.length }).incr('1');
const results = await counterfoil.buffered('views').addMany(new Map([['a', 1]]));
const first: boolean = await counterfoil.visitors('daily').firstVisit('12', '2026-11-25', Buffer.of(1));
const counts: number[] = (await counterfoil.series('hits').get('site', 'day')).map(({ start }) => start);
const onError: OnError = (family, id, n, error) => console.error(family.length, id, n, error.reason);
const fake: Counterfoil = new Testing('shop', { families: { votes: { min: 0, max: 10n }, hits: { windows: ['60s'] } }, onError });
fake.series('hits').later('site', 1, new Date());
fake.activity('readers').later('front', Buffer.of(1));
fake.visitors('daily').later('12', '2026-11-25', 'visitor');
await fake.series('hits').flush();
// @ts-expect-error a fallback is a number
void fake.buffered('views').value('a', 'none');
void counterfoil.buffered('views').addMany([[7, 1], [7n, 1]]);
await counterfoil.flush();
// @ts-expect-error an id is a text or an integer
void counterfoil.buffered('views').add(true);
// @ts-expect-error no client of Redis
new Counterfoil({}, 'shop');
export const all = [pending, values, shown, listed, days, value, first, counts, results.filter((each) => each instanceof NotCounted).map(({ reason }) => reason)];

// Views, with requests as Express, Fastify and Next.js type them
import { Views as ExpressViews } from 'counterfoil/express';
import { Views as FastifyViews } from 'counterfoil/fastify';
import { Views } from 'counterfoil/next';
const isCounted: boolean = await new ExpressViews(fake, 'views', { staff: (request) => request.params.id }).countView({} as never, 7n);
void new FastifyViews(Counterfoil.connect('/socket', 'shop'), 'views', { repeats: false, secret: 'key' }).counted(({ params }) => params.id);
export const GET = new Views(() => counterfoil, 'views').counted(async (_: Request, { params }: { params: Promise<{ id: string }> }) => Response.json(await params));
void GET(new Request('http://a'), { params: Promise.resolve({ id: isCounted ? '1' : '2' }) });
