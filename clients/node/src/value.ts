import { setTimeout as sleep } from 'node:timers/promises';
import type { Family } from './family.js';
import { type Integer, Misconfigured, NotCounted, integer, upTo } from './values.js';

/** A pool of mysql2, with promises or callbacks; or a connection that has no open transaction. */
export type Database = { query(...args: any[]): any; promise?(): Database };

/** The table of the application in which a family is stored, its column of ids, and that of values. */
export type Table = { table: string; id: string; value: string };

type Pending = { partition: number; incarnation: bigint; seq: bigint; nonce: bigint; isInFlight: boolean; batch: bigint; buffer: bigint };
type Row = { value: string; partition_no: number | null; seq: string; nonce: string; position: string | null };

/** Reads exact values with the application's connection to the database, or through the daemon. */
export class ExactReader {
  readonly tables = new Map<string, Table>();

  constructor(private readonly options: { daemon?: string; token?: string; database?: Database }) {}

  value(family: Family, id: string): Promise<Integer> {
    return this.options.database ? this.fromDatabase(this.options.database, family, id) : this.fromDaemon(family, id);
  }

  /** Reads the daemon's API: the row of a cached counter that is not in Redis. */
  async fromDaemon(family: Family, id: string): Promise<Integer> {
    const { daemon, token } = this.options;
    if (!daemon) throw new Misconfigured('NODAEMON', 'set the option daemon, or else database for values, and readRow for rows');
    const url = `${daemon.replace(/\/$/, '')}/api/v1/values?${new URLSearchParams({ family: family.name, id })}`;
    const headers: Record<string, string> = token ? { Authorization: `Bearer ${token}` } : {};
    for (const deadline = family.deadline(); ; await sleep(50)) {
      const reply = fetch(url, { headers, signal: AbortSignal.timeout(10_000) }).then(async (it) => [it.status, await it.text()] as const);
      const [status, text] = await reply.catch((error: Error) => [503, `${error.message}: ${error.cause ?? ''}`] as const);
      const value = /"value": ?(-?\d+)/.exec(text)?.[1]; // JSON.parse would round it; a quotation mark in an id is escaped
      if (status === 200 && value) return integer(value);
      if (status !== 503) throw new Misconfigured(`HTTP ${status}`, `the daemon at ${daemon}: ${text}`);
      if (performance.now() > deadline) throw new NotCounted('unreachable', `the daemon at ${daemon}: ${text}`);
    }
  }

  /** Redis first, then the value and the ledger in one statement: "Reading the exact value" of lua/README.md. */
  private async fromDatabase(database: Database, family: Family, id: string): Promise<Integer> {
    for (const deadline = family.deadline(); ; await sleep(50)) {
      const epoch = await family.describe();
      const numbers = epoch.settings.wide ? upTo(epoch.partitions) : [family.partition(id, epoch)];
      const pending = await Promise.all(numbers.map((number) => readPending(family, number, id)));
      const rows = await this.select(database, family, id, pending);
      const deltas = await Promise.all(pending.map((each) => judge(family, each, rows, id)));
      const wrong = deltas.find((delta) => typeof delta === 'string');
      if (!wrong) return integer(deltas.reduce<bigint>((sum, delta) => sum + BigInt(delta), BigInt(rows[0]!.value)));
      if (performance.now() > deadline) throw new NotCounted('DATABASE', `${family.name}: ${wrong}`);
    }
  }

  private async select(database: Database, family: Family, id: string, pending: Pending[]): Promise<Row[]> {
    const own = this.tables.get(family.name);
    const on = own ? `${quoted(own.table)} v ON v.${quoted(own.id)} = ?` : 'counterfoil_values v ON v.family = f.number AND v.id = ?';
    // as texts, since drivers round
    const sql = `SELECT CAST(COALESCE(v.${quoted(own?.value ?? 'value')}, 0) AS CHAR) AS value, l.partition_no,
      CAST(l.seq AS CHAR) AS seq, CAST(l.nonce AS CHAR) AS nonce, HEX(l.position) AS position
      FROM counterfoil_families f LEFT JOIN ${on} LEFT JOIN counterfoil_ledger l ON l.family = f.number
      AND (l.partition_no, l.incarnation) IN (${pending.map(() => '(?, ?)').join(', ')}) WHERE f.namespace = ? AND f.name = ?`;
    const batches = pending.flatMap(({ partition, incarnation }) => [partition, String(incarnation)]);
    const values = [own ? id : Buffer.from(id), ...batches, ...family.name.split('/')];
    const [rows] = await (database.promise?.() ?? database).query({ sql, values, rowsAsArray: false, typeCast: true }).catch((cause: Error) => {
      throw new NotCounted('DATABASE', cause.message, cause);
    });
    if (rows.length === 0) throw new Misconfigured('DATABASE', `${family.name} is not a family of this database`);
    return rows;
  }
}

async function readPending(family: Family, partition: number, id: string): Promise<Pending> {
  const keys = family.keys(partition, 'buffer', 'batch', 'meta');
  const [incarnation, seq, nonce, isInFlight, batch, buffer] = (await family.read('buffered_read', () => [keys, [id]])).map(String);
  const hex = (text?: string) => BigInt(`0x${text || 0}`);
  const numbers = { incarnation: hex(incarnation), seq: BigInt(seq || 0), nonce: hex(nonce), batch: BigInt(batch!), buffer: BigInt(buffer!) };
  return { partition, isInFlight: isInFlight === '1', ...numbers };
}

/** Returns what a partition adds to the value, or why it cannot be known. */
async function judge(family: Family, pending: Pending, rows: Row[], id: string): Promise<bigint | string> {
  const { partition, incarnation, seq, nonce, isInFlight, batch, buffer } = pending;
  const row = rows.find((each) => each.partition_no === partition);
  const [applied, position] = [BigInt(row?.seq ?? 0), row?.position ?? null];
  if (applied > seq) return 'a batch landed, or Redis was set back';
  if (row && applied === seq && BigInt(row.nonce) !== nonce) return 'Redis was set back';
  // a crash of Redis may take back an incarnation of which the ledger has no batch
  if (!row && (batch || buffer) && (await readPending(family, partition, id)).incarnation !== incarnation) return 'Redis was set back';
  if (applied === seq && position === null) return buffer;
  if (applied === seq && isInFlight) return buffer + (Buffer.compare(Buffer.from(id), Buffer.from(position!, 'hex')) > 0 ? batch : 0n);
  return applied === seq - 1n && position === null && isInFlight ? buffer + batch : 'the database is behind';
}

/** Quotes a name of MySQL, `table` or `database.table`. */
function quoted(name: string): string {
  return name.split('.').map((part) => `\`${part.replaceAll('`', '``')}\``).join('.');
}
