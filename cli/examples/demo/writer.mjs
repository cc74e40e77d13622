#!/usr/bin/env node
// Counts what happens in made-up shops and a forum with ioredis and the tests' client, as the demo's writer.
//
//     writer.mjs SOCKET LUA_DIR
//
// It asks for a row by {"row": ID} and reads its value, and tells what was counted when it reads "stop".
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';

import { Counter, NotCounted, OutcomeUnknown } from '../../../tests/clients/counter.mjs';

// `import` would not look in NODE_PATH
const { Redis } = createRequire(import.meta.url)('ioredis');
const [socket, lua] = process.argv.slice(2);

const RATE = 60; // calls a second
const [SHOPS, PRODUCTS, ITEMS, VISITORS] = [5, 200, 100, 20_000];
const REMEMBER_MS = 72 * 3600 * 1000;

const redis = new Redis({ path: socket, commandTimeout: 2000 });
redis.on('error', () => {}); // it connects again by itself
const counters = new Map();
const told = { sums: {}, unknown: 0 };
let stopping = false;
let rowComes;

createInterface({ input: process.stdin })
  .on('line', (line) => {
    if (line === 'stop') stopping = true;
    else rowComes(line);
  })
  .on('close', () => process.exit(0)); // the demo is over

const say = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);

function readRow(id) {
  const row = new Promise((resolve) => { rowComes = resolve; });
  say({ row: id });
  return row;
}

/** 1 is picked most, n 1/n as often. */
function zipf(places) {
  const weights = Array.from({ length: places }, (_, i) => 1 / (i + 1));
  let left = Math.random() * weights.reduce((sum, weight) => sum + weight);
  let place = 1;
  while (place < places && left >= weights[place - 1]) {
    left -= weights[place - 1];
    place += 1;
  }
  return place;
}

function counter(family) {
  if (!counters.has(family)) counters.set(family, new Counter(redis, `${lua}/v1`, family));
  return counters.get(family);
}

async function view() {
  const shop = zipf(SHOPS);
  const [family, id] = [`shop-${shop}/views`, `${shop}/product-${zipf(PRODUCTS)}`];
  await counter(family).hit(id);
  return [family, id, 1];
}

async function visit() {
  const [shop, visitor] = [zipf(SHOPS), `visitor-${Math.floor(Math.random() * VISITORS)}`];
  const [family, id] = [`shop-${shop}/visitors`, `${shop}/${new Date().toISOString().slice(0, 10)}`];
  const [daily, keys] = [counter(family), ['buffer', 'meta', `seen:${id}`]];
  const words = await daily.count('visitors_first', await daily.partition(id), keys, [REMEMBER_MS, 1, id, 1, visitor]);
  if (typeof words.at(-1) !== 'number') throw new NotCounted(`${id}: ${words.at(-1)}`);
  return [family, id, words.at(-1)];
}

async function vote() {
  const [id, change] = [`${zipf(ITEMS)}`, Math.random() < 0.75 ? 1 : -1];
  await counter('forum/votes').change(id, change, readRow);
  return ['forum/votes', id, change];
}

while (!stopping) {
  const random = Math.random();
  const action = random < 0.6 ? view : random < 0.8 ? visit : vote;
  try {
    const [family, id, counted] = await action();
    const sums = told.sums[family] ??= {};
    sums[id] = (sums[id] ?? 0) + counted;
  } catch (error) {
    if (!(error instanceof OutcomeUnknown)) throw error;
    console.error(`writer.mjs: ${error}`);
    told.unknown += 1;
  }
  await sleep((-Math.log(1 - Math.random()) / RATE) * 1000);
}
say({ told });
