// Compiled by a test, and not run.
import { Cluster, Redis } from 'ioredis';
import { Redis as Redis5 } from 'ioredis-5';
import mysql from 'mysql2';
import { createPool } from 'mysql2/promise';
import { createClient, createClientPool, createCluster } from 'redis';
import { createClient as createClient5 } from 'redis-5';
import { Counterfoil, type Integer, NotCounted } from 'counterfoil';

const clients = [new Redis(), new Redis5(), new Cluster([]), createClient(), createClient5(), createClientPool(), createCluster({ rootNodes: [] })];
for (const client of clients) new Counterfoil(client, 'shop');
new Counterfoil(new Redis(), 'shop', { database: createPool({}) });
const counterfoil = new Counterfoil(createClient({ RESP: 3 }), 'shop', { database: mysql.createPool({}), retryFor: 5000 });
const pending: Integer | null = await counterfoil.buffered('views', { table: { table: 't', id: 'id', value: 'n' } }).add('page', 1n);
const value: Integer = await counterfoil.cached('votes', { readRow: async (id: string) => id.length }).incr('1');
const results = await counterfoil.buffered('views').addMany(new Map([['a', 1]]));
const first: boolean = await counterfoil.visitors('daily').firstVisit('12', '2026-11-25', Buffer.of(1));
const counts: number[] = (await counterfoil.series('hits').get('site', 'day')).map(({ start }) => start);
// @ts-expect-error an id is a string
void counterfoil.buffered('views').add(7);
// @ts-expect-error no client of Redis
new Counterfoil({}, 'shop');
export const all = [pending, value, first, counts, results.filter((each) => each instanceof NotCounted).map(({ reason }) => reason)];
