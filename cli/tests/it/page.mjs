#!/usr/bin/env node
// A browser that nobody sees. Each line of the input is an order as JSON; `done` is written when it is carried out.
//
//     page.mjs CHROMIUM PICTURES URL
//
// puppeteer-core is looked up as any package is, and in NODE_PATH.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';

// `import` would not look in NODE_PATH
const puppeteer = createRequire(import.meta.url)('puppeteer-core');

const [chromium, pictures, url] = process.argv.slice(2);
const WAIT_MS = 60_000; // a page that stands still is found out, a slow machine is not taken for one

const browser = await puppeteer.launch({
  executablePath: chromium,
  pipe: true,
  timeout: WAIT_MS,
  // The sandbox needs rights that root and containers do not have, and the pages are our own; /dev/shm may be tiny.
  args: ['--no-sandbox', '--disable-dev-shm-usage', '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1'],
});
const page = await browser.newPage();
const wrong = [];
let loads = 0;
page.on('load', () => { loads += 1; });
page.on('console', (message) => {
  if (message.type() === 'error') wrong.push(`console: ${message.text()}`);
});
page.on('pageerror', (error) => wrong.push(`error: ${error}`));
page.on('request', (request) => {
  const asked = new URL(request.url());
  if (asked.protocol !== 'data:' && asked.origin !== new URL(url).origin) wrong.push(`elsewhere: ${asked}`);
});

/** Waits until the page says so; what it says instead is the error. */
async function until(wanted, seen) {
  const end = Date.now() + WAIT_MS;
  let last;
  do {
    last = await seen();
    if (last === wanted) return;
    await sleep(100);
  } while (Date.now() < end);
  assert.deepEqual(last, wanted);
}

/** Texts whose contrast with what is behind them is below 4.5 to 1. */
const unreadable = () => page.evaluate(() => {
  const parse = (colour) => colour.match(/[\d.]+/g).map(Number);
  const luminance = ([red, green, blue]) => {
    const [r, g, b] = [red, green, blue].map((part) => part / 255)
      .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const hasText = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  return [...document.body.querySelectorAll('*')].filter(hasText).flatMap((element) => {
    const [a, b] = [luminance(parse(getComputedStyle(element).color)), luminance(behind(element))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    return contrast < 4.5 ? [`${element.textContent.trim().slice(0, 40)}: ${contrast.toFixed(1)}`] : [];
  });
});

/** Texts that are shown as they are written in the source, and headings that repeat another one. */
const unclear = () => page.evaluate(() => {
  const headings = [...document.querySelectorAll('h1, h2, caption, summary')].map((heading) => heading.textContent);
  const twice = headings.filter((heading, at) => headings.indexOf(heading) !== at);
  const source = document.body.innerText.split('\n').filter((line) => /`|Durability::|""/.test(line));
  return [...twice, ...source];
});

const orders = {
  goto: ({ path }) => page.goto(new URL(path, url), { waitUntil: 'load', timeout: WAIT_MS }),
  shows: ({ selector, text }) => until(text, () => page.evaluate(
    (wanted) => document.querySelector(wanted)?.textContent.trim(), selector)),
  scheme: async ({ scheme }) => {
    await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }]);
    const back = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    assert.equal(back === 'rgb(255, 255, 255)', scheme === 'light', back);
  },
  readable: async () => assert.deepEqual(await unreadable(), []),
  size: ({ width, height }) => page.setViewport({ width, height }),
  fits: async () => {
    const [content, screen, scrolling] = await page.evaluate(() => [
      document.documentElement.scrollWidth,
      document.documentElement.clientWidth,
      [...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth + 1).map((box) => box.id),
    ]);
    assert.ok(content <= screen, `the page is ${content} wide, the screen ${screen}`);
    assert.deepEqual(scrolling, [], 'tables that are wider than the screen');
  },
  picture: ({ file }) => page.screenshot({ path: join(pictures, file), fullPage: true }),
  enter: async ({ selector, text }) => {
    await page.type(selector, text);
    await Promise.all([page.waitForNavigation({ timeout: WAIT_MS }), page.keyboard.press('Enter')]);
    wrong.length = 0; // the browser reports the 401 of the form
  },
  press: ({ selector }) => Promise.all([page.waitForNavigation({ timeout: WAIT_MS }), page.click(selector)]),
  at: async ({ path }) => assert.equal(page.url(), new URL(path, url).href),
  open: ({ selector }) => page.evaluate((wanted) => { document.querySelector(wanted).open = true; }, selector),
  'is open': async ({ selector }) => assert.ok(await page.evaluate(
    (wanted) => document.querySelector(wanted).open, selector)),
  evaluates: ({ expression, value }) => until(value, () => page.evaluate(expression)),
  plain: async () => assert.deepEqual(await unclear(), []),
  finest: ({ precision }) => until(precision, () => page.evaluate(
    () => document.querySelector('select[name=precision]')?.value)),
  focus: ({ selector }) => page.focus(selector),
  focused: async ({ selector }) => assert.ok(await page.evaluate(
    (wanted) => document.activeElement === document.querySelector(wanted), selector), 'the focus went elsewhere'),
  loads: async ({ times }) => assert.equal(loads, times, 'everything came without another load'),
  chart: async ({ sum }) => {
    await until(sum, () => page.evaluate(
      () => document.getElementById('chart').chart?.data.slice(1).flat().reduce((total, count) => total + count, 0)));
    assert.ok(await page.$('#chart canvas'));
  },
  'without scripts': () => page.setJavaScriptEnabled(false),
  'with scripts': () => page.setJavaScriptEnabled(true),
  'nothing is wrong': async () => assert.deepEqual(wrong, []),
};

try {
  for await (const line of createInterface({ input: process.stdin })) {
    const order = JSON.parse(line);
    try {
      await orders[order.do](order);
    } catch (error) {
      console.log(`${error.message} (${[await page.title(), ...wrong].join('; ')})`.replaceAll('\n', ' '));
      continue;
    }
    console.log('done');
  }
} finally {
  await browser.close();
}
