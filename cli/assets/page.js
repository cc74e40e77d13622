// Keeps a page up to date. Everything is there without it.
'use strict';

const STALE_MS = 8_000; // no news for so long: the connection is lost, even if nobody says so
const AGAIN_MS = 3_000;
const CHART_MS = 2_000;
const loaded = Date.now();

const connection = document.getElementById('connection');
const age = document.getElementById('age');
let heard; // when there was news last; the page itself is as new as its load

/** Says whether there is news, and how old the page is otherwise. */
function tell() {
  const since = Date.now() - (heard ?? loaded);
  const lost = since > STALE_MS;
  const text = lost ? 'The daemon does not answer.' : heard ? 'Live.' : 'Connecting…';
  if (connection.textContent !== text) connection.textContent = text;
  age.textContent = lost ? `These figures are ${Math.round(since / 1000)} s old.` : '';
  connection.parentElement.classList.toggle('lost', lost);
}

/** Whether somebody marks text there, which is not to vanish under them. */
function isMarked(part) {
  const marked = getSelection();
  return !marked.isCollapsed && part.contains(marked.anchorNode);
}

/** Puts new content into a part, and leaves focus and scrolling where they were. */
function replace(part, content) {
  const focused = part.contains(document.activeElement) ? document.activeElement.id : '';
  const scrolled = part.querySelector('.scroll')?.scrollLeft;
  const open = part.querySelector('details')?.open;
  part.innerHTML = content;
  if (open) part.querySelector('details')?.setAttribute('open', '');
  if (scrolled) part.querySelector('.scroll')?.scrollTo(scrolled, 0);
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

/** The parts of the status page, as the daemon sends them. */
function watch(path) {
  const waiting = new Map();
  const listen = () => {
    const events = new EventSource(path + location.search);
    events.onmessage = ({ data }) => {
      heard = Date.now();
      Object.entries(JSON.parse(data).parts).forEach(([name, content]) => waiting.set(name, content));
      for (const [name, content] of waiting) {
        const part = document.getElementById(`part-${name}`);
        if (isMarked(part)) continue;
        replace(part, content);
        waiting.delete(name);
      }
    };
    events.onerror = () => {
      // Where the daemon refused, the browser does not come again by itself.
      if (events.readyState === EventSource.CLOSED) setTimeout(listen, AGAIN_MS);
    };
  };
  listen();
}

/** The slices of a counter as a chart. */
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
    heard = Date.now();
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
  tell();
  setInterval(tell, 1000);
}
