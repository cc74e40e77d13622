import { setTimeout as sleep } from 'node:timers/promises';
import type { Family } from './family.js';
import { type Integer, Misconfigured, NotCounted, checkId, integer, upTo } from './values.js';

/** A pool of mysql2, with promises or callbacks; or a connection that has no open transaction. */
export type Database = { query(...args: any[]): any; promise?(): Database };

/** The table of the application in which a family is stored, its column of ids, and that of values. */
export type Table = { table: string; id: string; value: string };

/** What a partition has pending of an id. */
type Pending = Awaited<ReturnType<typeof readPending>>;

/** The value, and the ledger of a partition if it has any: bytes, since drivers round numbers. */
type Row = Record<'value' | 'partition_no' | 'seq' | 'nonce' | 'position' | 'database_id', Buffer | null>;

/** Reads exact values with the application's connection to the database, or through the daemon. */
export class ExactReader {
  readonly tables = new Map<string, Table>();

  constructor(private readonly options: { daemon?: string; token?: string; database?: Database }) {}

  async value(family: Family, id: string): Promise<Integer> {
    checkId(id);
    return this.options.database ? this.fromDatabase(this.options.database, family, id) : this.fromDaemon(family, id);
  }

  /** Reads the daemon's API: the row of a cached counter that is not in Redis. */
  async fromDaemon(family: Family, id: string): Promise<Integer> {
    const { daemon, token } = this.options;
    if (!daemon) throw new Misconfigured('NODAEMON', 'set the option daemon, or else database, and readRow for rows');
    const url = `${daemon.replace(/\/$/, '')}/api/v1/values?${new URLSearchParams({ family: family.name, id })}`;
    const headers: Record<string, string> = token ? { Authorization: `Bearer ${token}` } : {};
    for (const deadline = family.deadline(); ; await sleep(50)) {
      const reply = await fetch(url, { headers, signal: AbortSignal.timeout(10_000) }).catch(unreachable);
      const text = await reply.text().catch(String);
      const value = /"value": ?(-?\d+)[,}]/.exec(text)?.[1]; // JSON.parse would round it
      if (reply.ok && value) return integer(value);
      const isBusy = reply.status >= 500 || reply.status === 429;
      if (!reply.ok && !isBusy) throw new Misconfigured(`HTTP ${reply.status}`, `the daemon at ${daemon}: ${text}`);
      if (performance.now() > deadline) throw new NotCounted('unreachable', `the daemon at ${daemon}: ${text}`, undefined, true);
    }
  }

  /** Redis first, then the value and the ledger in one statement: "Reading the exact value" of lua/README.md. */
  private async fromDatabase(database: Database, family: Family, id: string): Promise<Integer> {
    for (const deadline = family.deadline(); ; await sleep(50)) {
      const epoch = await family.describe();
      if (epoch.settings.table && !this.tables.has(family.name)) {
        throw new Misconfigured('NOTABLE', `set the option table: the daemon stores the values of ${family.name} in a table of yours`);
      }
      const numbers = epoch.settings.wide ? upTo(epoch.partitions) : [family.partition(id, epoch)];
      const pending = await Promise.all(numbers.map((number) => readPending(family, number, id)));
      const rows = await this.select(database, family, id, pending);
      await family.checkDatabase(String(rows[0]!.database_id));
      const deltas = await Promise.all(pending.map((each) => judge(family, each, rows, id)));
      const wrong = deltas.find((delta) => typeof delta === 'string');
      if (!wrong) return integer(deltas.reduce<bigint>((sum, delta) => sum + BigInt(delta), big(rows[0]!.value)));
      if (performance.now() > deadline) throw new NotCounted('DATABASE', `${family.name}: ${wrong}`, undefined, true);
    }
  }

  private async select(database: Database, family: Family, id: string, pending: Pending[]): Promise<Row[]> {
    const own = this.tables.get(family.name);
    const { table, id: column, value } = own ?? { table: 'counterfoil_values', id: 'id', value: 'value' };
    const sql = `SELECT COALESCE(v.??, 0) AS value, l.partition_no, l.seq, l.nonce, l.position, f.database_id
      FROM counterfoil_families f
      LEFT JOIN ?? v ON v.?? = ? ${own ? '' : 'AND v.family = f.number'}
      LEFT JOIN counterfoil_ledger l ON l.family = f.number AND (l.partition_no, l.incarnation) IN (?)
      WHERE f.namespace = ? AND f.name = ?`;
    const batches = pending.map(({ partition, incarnation }) => [partition, String(incarnation)]);
    const values = [value, table, column, own ? id : Buffer.from(id), batches, ...family.name.split('/')];
    const options = { rowsAsArray: false, typeCast: (field: { buffer(): Buffer }) => field.buffer() };
    const [rows] = await (database.promise?.() ?? database).query({ sql, values, ...options }).catch((cause: Error) => {
      throw new NotCounted('DATABASE', cause.message, cause, true);
    });
    if (rows.length === 0) throw new Misconfigured('DATABASE', `${family.name} is not a family of this database`);
    return rows;
  }
}

const unreachable = (error: Error) => new Response(`${error.message}: ${error.cause ?? ''}`, { status: 503 });

/** Returns the integer of a text, or of a text's bytes. */
const big = (text: unknown): bigint => BigInt(String(text ?? 0));

async function readPending(family: Family, partition: number, id: string) {
  const keys = family.keys(partition, 'buffer', 'batch', 'meta');
  const words = (await family.read('buffered_read', () => ({ keys, args: [id] }))).map(String);
  const [incarnation, seq, nonce, isInFlight, batch, buffer] = words;
  const numbers = { incarnation: big(`0x${incarnation || 0}`), seq: big(seq || 0), nonce: big(`0x${nonce || 0}`) };
  return { partition, ...numbers, isInFlight: isInFlight === '1', batch: big(batch), buffer: big(buffer) };
}

/** Returns what a partition adds to the value, or why it cannot be known. */
async function judge(family: Family, pending: Pending, rows: Row[], id: string): Promise<bigint | string> {
  const { partition, incarnation, seq, nonce, isInFlight, batch, buffer } = pending;
  const row = rows.find((each) => String(each.partition_no) === String(partition));
  const applied = big(row?.seq);
  const position = row?.position ?? null;
  if (applied > seq) return 'a batch landed, or Redis was set back';
  if (row && applied === seq && big(row.nonce) !== nonce) return 'Redis was set back';
  // a crash of Redis may take back an incarnation of which the ledger has no batch
  const isNew = !row && (batch !== 0n || buffer !== 0n);
  if (isNew && (await readPending(family, partition, id)).incarnation !== incarnation) return 'Redis was set back';
  if (applied === seq && position === null) return buffer;
  if (applied === seq && isInFlight) return Buffer.compare(Buffer.from(id), position!) > 0 ? buffer + batch : buffer;
  return applied === seq - 1n && position === null && isInFlight ? buffer + batch : 'the database is behind';
}
