// Keeps a page up to date. The page is complete without it.
'use strict';

const STALE_MS = 8_000; // without a reply for this long, the connection is lost
const UPDATE_MS = 2_000;
const loaded = Date.now();

const connection = document.getElementById('connection');
const age = document.getElementById('age');
const shown = new Map(); // the content of each part
const subject = document.title.slice(document.title.indexOf(' – ') + 3); // what the page is about
let received; // the time of the last reply

/** Shows the state of the connection, and the age of the page if it is lost. */
function showConnection() {
  const since = Date.now() - (received ?? loaded);
  const lost = since > STALE_MS;
  const text = lost ? 'The daemon does not respond.' : received ? 'Live.' : 'Connecting…';
  if (connection.textContent !== text) connection.textContent = text;
  age.textContent = lost ? `Last update ${Math.round(since / 1000)} s ago.` : '';
  connection.parentElement.classList.toggle('lost', lost);
  if (lost && !document.body.classList.contains('lost')) lose();
  document.body.classList.toggle('lost', lost);
}

/** Replaces what is not known while the daemon does not respond: the state and the figures. The next reply restores them. */
function lose() {
  for (const value of document.querySelectorAll('.figure .value')) value.textContent = '–';
  shown.delete('part-figures');
  const health = document.querySelector('.health');
  if (!health) return;
  const last = health.querySelector('strong').textContent;
  const [state, text] = [document.createElement('strong'), `The daemon does not respond. The last state was: ${last}.`];
  state.textContent = 'unknown';
  health.className = 'health unknown';
  health.replaceChildren(state, ' ', text);
  shown.delete('part-health');
  setTitle(state);
}

/** Begins the title with the state. */
function setTitle(state) {
  if (state) document.title = `${state.textContent} – ${subject}`;
}

/** Returns whether the user has selected text in the part, which an update would deselect. */
function isSelected(part) {
  const selection = getSelection();
  return !selection.isCollapsed && part.contains(selection.anchorNode);
}

/** Replaces the content of a part, and keeps focus, text of the search, open details and scroll position. */
function replace(part, content) {
  const focused = part.contains(document.activeElement) ? document.activeElement.id : '';
  const typed = part.querySelector('input[type=search]')?.value;
  const scrolled = part.querySelector('.scroll')?.scrollLeft;
  const open = new Map([...part.querySelectorAll('details[id]')].map((details) => [details.id, details.open]));
  part.innerHTML = content;
  for (const details of part.querySelectorAll('details[id]')) details.open = open.get(details.id) ?? details.open;
  if (typed !== undefined) part.querySelector('input[type=search]').value = typed;
  if (scrolled) part.querySelector('.scroll')?.scrollTo(scrolled, 0);
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

/** Repeats a task, each time after the last has ended. */
function repeat(task) {
  const again = () => task().catch(() => {}).finally(() => setTimeout(again, UPDATE_MS));
  again();
}

/** Updates the parts of a page that changed. */
function watch(path) {
  repeat(async () => {
    const reply = await fetch(path + location.search, { signal: AbortSignal.timeout(STALE_MS) });
    if (reply.status === 401) location.reload(); // shows the form for the token
    if (!reply.ok) return;
    const fresh = document.createElement('template');
    fresh.innerHTML = await reply.text();
    received = Date.now();
    for (const { id, innerHTML } of fresh.content.children) {
      const part = document.getElementById(id);
      if (shown.get(id) === innerHTML || isSelected(part)) continue;
      replace(part, innerHTML);
      shown.set(id, innerHTML);
    }
    showConnection();
    setTitle(document.querySelector('#part-health strong'));
  });
}

/** Returns the labels of times, with the day below the first of each day. Slices of a day or more have only that. */
function timeLabels(times, width) {
  let labelled;
  return times.map((time) => {
    const local = new Date((time - new Date(time * 1000).getTimezoneOffset() * 60) * 1000).toISOString();
    const [day, clock] = [local.slice(0, 10), local.slice(11, width < 60 ? 19 : 16)];
    if (width >= 86_400) return day;
    const isNew = day !== labelled;
    labelled = day;
    return isNew ? `${clock}\n${day}` : clock;
  });
}

/** Draws the slices of a counter as bars in the browser's time zone. The last one, which is not over, is hollow. */
function draw(box) {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const wholeSteps = Array.from({ length: 12 }, (_, zeros) => [1, 2, 5].map((step) => step * 10 ** zeros)).flat();
  const size = () => ({ width: box.clientWidth, height: 320 });
  const bars = { paths: uPlot.paths.bars({ size: [0.8] }), points: { show: false } };
  let chart;
  const build = (data) => {
    const width = data[0].length > 1 ? data[0][1] - data[0][0] : 1;
    chart?.destroy();
    const axis = { stroke: colour('--text'), grid: { stroke: colour('--line') }, ticks: { stroke: colour('--line') } };
    chart = new uPlot({
      ...size(),
      series: [
        {},
        { label: box.dataset.label, stroke: colour('--link'), fill: colour('--link'), ...bars },
        { label: 'not over yet', stroke: colour('--warn'), width: 2, ...bars },
      ],
      axes: [{ ...axis, space: 90, values: (_, times) => timeLabels(times, width) }, { ...axis, incrs: wholeSteps, size: 80 }],
      scales: { x: { range: (_, first, last) => [first - width / 2, last + width / 2] }, y: { range: (_, least, most) => [Math.min(least, 0), Math.max(most, 5) * 1.1] } },
    }, data, box);
    box.chart = chart;
  };
  repeat(async () => {
    const reply = await fetch(box.dataset.source).catch(() => ({ ok: false }));
    box.classList.toggle('old', !reply.ok);
    if (!reply.ok) return;
    const { slices } = await reply.json();
    const last = slices.length - 1;
    const data = [
      slices.map(({ start }) => start),
      slices.map(({ count }, at) => (at < last ? count : null)),
      slices.map(({ count }, at) => (at < last ? null : count)),
    ];
    if (chart) chart.setData(data); else build(data);
  });
  addEventListener('resize', () => chart?.setSize(size()));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => chart && build(chart.data));
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  document.getElementById('chart-zone').textContent = zone === 'UTC' ? 'Times are in UTC.' : `Times of the chart are in ${zone}, those of the table in UTC.`;
  document.getElementById('slices').open = false;
}

/** Copies the command beside a button. */
function copy({ target }) {
  if (!target.matches('.copy')) return;
  const command = target.parentElement.querySelector('code');
  navigator.clipboard?.writeText(command.textContent).then(() => { target.textContent = 'Copied'; });
  getSelection().selectAllChildren(command);
}

document.documentElement.classList.add('scripted');
document.addEventListener('click', copy);
const live = document.querySelector('[data-live]');
const box = document.getElementById('chart');
if (live) watch(live.dataset.live);
if (box) draw(box);
if (connection) {
  showConnection();
  setInterval(showConnection, 1000);
}
