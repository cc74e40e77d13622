#!/usr/bin/env node
// Counts hits with ioredis and its default retries, as a client of lossy.py; see there.
//
//     lossy.mjs SOCKET LUA_DIR HITS
//
// ioredis is looked up as any package is, and in NODE_PATH.
import { createRequire } from 'node:module';

import { Counter, OutcomeUnknown } from './counter.mjs';

// `import` would not look in NODE_PATH
const { Redis } = createRequire(import.meta.url)('ioredis');
const [socket, lua, hits] = process.argv.slice(2);

const redis = new Redis({ path: socket, commandTimeout: 2000 });
redis.on('error', () => {}); // it connects again by itself
const told = { counted: 0, unknown: 0 };
const ids = ['a', 'b', 'c', 'é'];
await Promise.all(ids.map(async (id, i) => {
  const counter = new Counter(redis, `${lua}/v1`, 'shop/hits');
  for (let k = i; k < hits; k += ids.length) {
    try {
      await counter.hit(id);
      told.counted += 1;
    } catch (error) {
      if (!(error instanceof OutcomeUnknown)) throw error;
      console.error(error);
      told.unknown += 1;
    }
  }
}));
redis.disconnect();
console.log(JSON.stringify(told));
