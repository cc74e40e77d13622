// Keeps a page up to date. The page is complete without it.
'use strict';

const STALE_MS = 8_000; // without a message for this long, the connection is lost
const RETRY_MS = 3_000;
const CHART_MS = 2_000;
const loaded = Date.now();

const connection = document.getElementById('connection');
const age = document.getElementById('age');
let received; // the time of the last message

/** Shows the state of the connection, and the age of the page if it is lost. */
function showConnection() {
  const since = Date.now() - (received ?? loaded);
  const lost = since > STALE_MS;
  const text = lost ? 'The daemon does not respond.' : received ? 'Live.' : 'Connecting…';
  if (connection.textContent !== text) connection.textContent = text;
  age.textContent = lost ? `Last update ${Math.round(since / 1000)} s ago.` : '';
  connection.parentElement.classList.toggle('lost', lost);
}

/** Returns whether the user has selected text in the part, which an update would deselect. */
function isSelected(part) {
  const selection = getSelection();
  return !selection.isCollapsed && part.contains(selection.anchorNode);
}

/** Replaces the content of a part, and keeps focus and scroll position. */
function replace(part, content) {
  const focused = part.contains(document.activeElement) ? document.activeElement.id : '';
  const scrolled = part.querySelector('.scroll')?.scrollLeft;
  const open = part.querySelector('details')?.open;
  part.innerHTML = content;
  if (open) part.querySelector('details')?.setAttribute('open', '');
  if (scrolled) part.querySelector('.scroll')?.scrollTo(scrolled, 0);
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

/** Updates the parts of the status page with the events of the daemon. */
function watch(path) {
  const waiting = new Map();
  const listen = () => {
    const events = new EventSource(path + location.search);
    events.onmessage = ({ data }) => {
      received = Date.now();
      Object.entries(JSON.parse(data).parts).forEach(([name, content]) => waiting.set(name, content));
      for (const [name, content] of waiting) {
        const part = document.getElementById(`part-${name}`);
        if (isSelected(part)) continue;
        replace(part, content);
        waiting.delete(name);
      }
    };
    events.onerror = () => {
      // After an error status the browser does not reconnect.
      if (events.readyState === EventSource.CLOSED) setTimeout(listen, RETRY_MS);
    };
  };
  listen();
}

/** Draws the slices of a counter as a chart. */
function draw(box) {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const wholeSteps = Array.from({ length: 12 }, (_, zeros) => [1, 2, 5].map((step) => step * 10 ** zeros)).flat();
  const size = () => ({ width: box.clientWidth, height: 320 });
  let chart;
  const build = (data) => {
    chart?.destroy();
    const axis = { stroke: colour('--text'), grid: { stroke: colour('--line') }, ticks: { stroke: colour('--line') } };
    chart = new uPlot({
      ...size(),
      series: [{}, { label: box.dataset.label, stroke: colour('--link'), width: 2 }],
      axes: [axis, { ...axis, incrs: wholeSteps, size: 80 }],
      scales: { y: { range: (_, least, most) => [Math.min(least, 0), Math.max(most, 5) * 1.1] } },
    }, data, box);
    box.chart = chart;
  };
  const load = async () => {
    const reply = await fetch(box.dataset.source).catch(() => undefined);
    if (!reply?.ok) return;
    const { slices } = await reply.json();
    const data = [slices.map(({ start }) => start), slices.map(({ count }) => count)];
    received = Date.now();
    if (chart) chart.setData(data); else build(data);
  };
  addEventListener('resize', () => chart?.setSize(size()));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => chart && build(chart.data));
  const again = () => load().finally(() => setTimeout(again, CHART_MS));
  again();
}

const live = document.querySelector('[data-live]');
const box = document.getElementById('chart');
if (live) watch(live.dataset.live);
if (box) draw(box);
if (connection) {
  showConnection();
  setInterval(showConnection, 1000);
}
