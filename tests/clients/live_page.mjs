#!/usr/bin/env node
// Looks at the example's live page with a browser that nobody sees; the page's site must not have been hit before.
//
//     live_page.mjs CHROMIUM URL
//
// puppeteer-core is looked up as any package is, and in NODE_PATH.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { setTimeout as sleep } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';

// `import` would not look in NODE_PATH
const puppeteer = createRequire(import.meta.url)('puppeteer-core');

const [chromium, url] = process.argv.slice(2);
const LINE_COLOUR = [0xc2, 0x41, 0x0c]; // as the page has it
const REPLY_MS = 60_000; // a page that stands still is found out, a slow machine is not taken for one

/** Talks by a pipe and ends with it; knows no other host, whatever the page asks for. */
const launch = () => puppeteer.launch({
  executablePath: chromium,
  pipe: true,
  timeout: REPLY_MS,
  // The sandbox needs rights that root and containers do not have, and the page is our own; /dev/shm may be tiny.
  args: ['--no-sandbox', '--disable-dev-shm-usage', '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1'],
});

/** Gathers what the page must not have: complaints of any kind, and requests elsewhere. */
function watch(page) {
  const wrong = [];
  page.on('console', (message) => {
    if (message.type() === 'error') wrong.push(`console: ${message.text()}`);
  });
  page.on('pageerror', (error) => wrong.push(`error: ${error}`));
  page.on('request', (request) => {
    const asked = new URL(request.url());
    if (asked.protocol !== 'data:' && asked.origin !== new URL(url).origin) wrong.push(`elsewhere: ${asked}`);
  });
  return wrong;
}

/** Waits until the page's line is the text and its chart adds up to the hits; what is there instead is the error. */
async function shows(page, text, hits) {
  const until = Date.now() + REPLY_MS;
  let seen;
  do {
    seen = await page.evaluate(() => ({
      text: document.getElementById('line').textContent,
      hits: chart.data[1].reduce((sum, count) => sum + count, 0),
    }));
    await sleep(100);
  } while (!isDeepStrictEqual(seen, { text, hits }) && Date.now() < until);
  assert.deepEqual(seen, { text, hits });
}

/** How far the chart's line stretches on the canvas, which is as wide as that. */
const drawn = (page) => page.evaluate(([red, green, blue]) => {
  const canvas = document.querySelector('#chart canvas');
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const columns = new Set();
  const rows = new Set();
  for (let at = 0; at < data.length; at += 4) {
    if (data[at] !== red || data[at + 1] !== green || data[at + 2] !== blue || data[at + 3] !== 255) continue;
    columns.add((at / 4) % canvas.width);
    rows.add(Math.floor(at / 4 / canvas.width));
  }
  return { columns: columns.size, rows: rows.size, width: canvas.width, height: canvas.height };
}, LINE_COLOUR);

const hit = async (count, headers) => {
  for (let i = 0; i < count; i += 1) {
    const { status } = await fetch(new URL('/hit', url), { method: 'POST', headers });
    assert.equal(status, 204);
  }
};

const browser = await launch();
try {
  const page = await browser.newPage();
  const wrong = watch(page);
  let loads = 0;
  page.on('load', () => { loads += 1; });

  await page.goto(url);
  await shows(page, '1 visitor and 1 page view in the last 10 minutes', 1);
  const first = await drawn(page);
  assert.ok(first.columns > first.width / 2, `the line is drawn: ${JSON.stringify(first)}`);

  await hit(3, {}); // each by somebody new
  await hit(8, { cookie: 'visitor=regular' });
  await shows(page, '5 visitors and 12 page views in the last 10 minutes', 12);

  await page.click('#hit'); // by the visitor who was the first
  await shows(page, '5 visitors and 13 page views in the last 10 minutes', 13);

  await hit(988, { cookie: 'visitor=eager' });
  await shows(page, '6 visitors and 1,001 page views in the last 10 minutes', 1001);
  const last = await drawn(page);
  assert.ok(last.rows > last.height / 2 && last.rows > 2 * first.rows, `the line rises: ${JSON.stringify([first, last])}`);

  await page.select('#precision', '3600s');
  await page.waitForFunction(() => chart.data[0][1] - chart.data[0][0] === 3600, { timeout: REPLY_MS });
  await shows(page, '6 visitors and 1,001 page views in the last 10 minutes', 1001);

  assert.equal(loads, 1, 'everything came without another load');
  assert.deepEqual(wrong, []);
} finally {
  await browser.close();
}
console.log('passed');
