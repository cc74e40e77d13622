import { readFileSync } from 'node:fs';
import { pool } from './shop.mjs';

await pool.query(readFileSync(new URL('schema.sql', import.meta.url), 'utf8'));
await pool.end();
