// A lane for each instance: its grants over time, where it stood still, who took over, what the store refused.

import uPlot from "./uplot-1.6.32.js";
import { colour, colourOf, onLight } from "./colour.js";
import { texts } from "./control_texts.js";
import { part, write } from "./dom.js";
import { milliseconds, moment, number, seconds } from "./figure.js";

const KEPT_S = 120;
const SPANS_S = [5, 15, 60, 120]; // how much is shown
const BRIEF_S = 0.25; // the lease of a shorter grant is not drawn
const NEAR_PX = 6;
const MARKS = { fenced: "✕", wrote: "!", came: "▲", left: "▼", silent: "…", back: "▲" };

const bars = new Map(); // by instance and token: `{ instance, token, from, until, purchases, units, waited, over }`
const stills = new Map(); // the same key: `{ from, until }`, as long as it stood still
const leases = new Map(); // by token: `{ from, until, instance }`
const happened = new Map(); // by id: what is marked
let lanes = [];
let now = 0;
let span = SPANS_S[2];
let frozen = null; // `[from, until]` when somebody has chosen what to see
let chosen = null; // the bar that is told of
let plot = null;

/** Remember grants of before this page was opened. */
export function recall({ grants }) {
  grants.forEach(keep);
}

function keep({ instance, token, at, held_ms, purchases, units, waited_ms }) {
  bars.set(`${instance}/${token}`, {
    instance, token, from: at, until: at + held_ms / 1_000, purchases, units, waited: waited_ms, over: true,
  });
}

/** Show a picture: what was, and what is. */
export function showLanes(picture) {
  now = picture.at;
  picture.grants.forEach(keep);
  for (const { instance, token, since, paused_s } of picture.instances) {
    if (token === null || since === null) continue;
    const key = `${instance}/${token}`;
    if (!bars.get(key)?.over) bars.set(key, { instance, token, from: since, until: now, purchases: null, units: null, waited: null, over: false });
    if (paused_s > 0 && stills.has(key)) stills.get(key).until = now;
  }
  for (const { instance, token, holds, ttl_left_s } of picture.queue) {
    const bar = bars.get(`${instance}/${token}`);
    if (!holds || ttl_left_s === null || bar === undefined) continue;
    leases.set(token, { instance, from: bar.from, until: now + ttl_left_s });
  }
  for (const event of picture.events) hear(event);
  for (const [token, { instance }] of leases) {
    const key = `${instance}/${token}`;
    if (bars.get(key)?.over && !stills.has(key)) leases.delete(token); // it was given back
  }
  forget();
  const names = [...new Set([...picture.instances.map(({ instance }) => instance), ...[...bars.values()].map(({ instance }) => instance)])].sort();
  if (names.join() !== lanes.join()) {
    lanes = names;
    draw();
  }
  plot?.setData([[now - KEPT_S, now], [null, null]]);
  part("lanes-plot").setAttribute("aria-label", texts.lanesNow(lanes.length, number([...bars.values()].filter(({ from }) => from > now - SPANS_S[2]).length)));
  if (chosen !== null) tell(bars.get(`${chosen.instance}/${chosen.token}`) ?? chosen);
}

function hear({ id, at, instance, kind, facts }) {
  const key = `${facts.of ?? instance}/${facts.token}`;
  if (kind === "paused" && !stills.has(key)) stills.set(key, { from: at, until: Math.min(now, at + facts.for_s) });
  if (kind === "woke" && stills.has(key)) stills.get(key).until = at;
  if (kind === "overtaken" || kind in MARKS) happened.set(id, { at, kind, of: facts.of ?? instance, by: facts.by, token: facts.token });
}

function forget() {
  const since = now - KEPT_S;
  for (const [key, { until }] of bars) if (until < since) bars.delete(key);
  for (const [key, { until }] of stills) if (until < since) stills.delete(key);
  for (const [token, { until }] of leases) if (until < since) leases.delete(token);
  for (const [id, { at }] of happened) if (at < since) happened.delete(id);
}

/** What is marked of the last two minutes, for the other charts. */
export function marks() {
  return [...happened.values()].filter(({ kind }) => ["overtaken", "fenced", "wrote"].includes(kind));
}

// -- drawing ---------------------------------------------------------------------------------------------------------

const range = () => frozen ?? [now - span, now + Math.max(0.5, span / 30)];

function draw() {
  plot?.destroy();
  const element = part("lanes-plot");
  element.parentElement.style.setProperty("--lanes", lanes.length);
  const quiet = () => colour("--quiet");
  const axis = { stroke: quiet, font: "11px system-ui, sans-serif", ticks: { show: false } };
  plot = new uPlot(
    {
      width: element.clientWidth,
      height: element.clientHeight,
      padding: [4, 12, 0, 0],
      legend: { show: false },
      cursor: { sync: { key: "control" }, drag: { x: true, y: false, setScale: false }, y: false, points: { show: false } },
      select: { show: true },
      scales: { x: { range }, y: { range: () => [0, lanes.length], dir: -1, time: false } },
      axes: [
        { ...axis, size: 22, gap: 2, space: 72, grid: { stroke: () => colour("--edge"), width: 1 }, values: (_, moments) => moments.map(moment) },
        { ...axis, scale: "y", side: 3, size: 58, gap: 6, grid: { show: false }, splits: () => lanes.map((_, lane) => lane + 0.5), values: () => lanes, font: "600 12px system-ui, sans-serif" },
      ],
      series: [{}, { paths: () => null, points: { show: false } }],
      hooks: {
        draw: [drawAll],
        setCursor: [({ cursor }) => point(cursor)],
        setSelect: [zoomTo],
      },
    },
    [[now - KEPT_S, now], [null, null]],
    element,
  );
}

function drawAll(u) {
  const { ctx } = u;
  const [left, top, width, height] = [u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height];
  const scale = devicePixelRatio;
  const x = (at) => u.valToPos(at, "x", true);
  const y = (lane) => top + (lane * height) / lanes.length;
  const tall = height / lanes.length;
  const thick = Math.min(26 * scale, tall * 0.62);
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, width, height);
  ctx.clip();
  lanes.forEach((_, lane) => {
    ctx.fillStyle = colour(lane % 2 ? "--card" : "--inset");
    ctx.globalAlpha = 0.6;
    ctx.fillRect(left, y(lane), width, tall);
  });
  ctx.globalAlpha = 1;
  for (const { instance, from, until } of leases.values()) {
    if (until - from < BRIEF_S || !lanes.includes(instance)) continue;
    const middle = y(lanes.indexOf(instance) + 0.5) + thick / 2 + 3 * scale;
    ctx.strokeStyle = colourOf(instance);
    ctx.lineWidth = 2 * scale;
    ctx.beginPath();
    ctx.moveTo(x(from), middle);
    ctx.lineTo(x(until), middle);
    ctx.moveTo(x(until), middle - 3 * scale);
    ctx.lineTo(x(until), middle + 3 * scale);
    ctx.stroke();
  }
  for (const bar of bars.values()) drawBar(ctx, bar, { x, y, thick, scale });
  for (const one of happened.values()) drawMark(ctx, one, { x, y, thick, scale });
  ctx.restore();
}

function drawBar(ctx, bar, { x, y, thick, scale }) {
  const lane = lanes.indexOf(bar.instance);
  const [from, until] = [x(bar.from), x(bar.until)];
  const high = y(lane + 0.5) - thick / 2;
  const wide = Math.max(2 * scale, until - from);
  ctx.fillStyle = colourOf(bar.instance);
  ctx.fillRect(from, high, wide, thick);
  const still = stills.get(`${bar.instance}/${bar.token}`);
  if (still) hatch(ctx, x(still.from), high, Math.max(0, x(Math.min(still.until, bar.until)) - x(still.from)), thick, scale);
  if (bar === chosen || (chosen && chosen.token === bar.token && chosen.instance === bar.instance)) {
    ctx.strokeStyle = colour("--text");
    ctx.lineWidth = 2 * scale;
    ctx.strokeRect(from - 2 * scale, high - 2 * scale, wide + 4 * scale, thick + 4 * scale);
  }
  if (!bar.purchases || still || wide < 76 * scale) return;
  ctx.fillStyle = colour("--card");
  ctx.font = `600 ${11 * scale}px system-ui, sans-serif`;
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  ctx.fillText(texts.barLabel(number(bar.purchases), number(bar.units)), from + 6 * scale, high + thick / 2, wide - 8 * scale);
}

function hatch(ctx, left, top, width, height, scale) {
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, width, height);
  ctx.clip();
  ctx.fillStyle = colour("--card");
  ctx.globalAlpha = 0.35;
  ctx.fillRect(left, top, width, height);
  ctx.globalAlpha = 0.9;
  ctx.strokeStyle = colour("--card");
  ctx.lineWidth = 2 * scale;
  ctx.beginPath();
  for (let at = left - height; at < left + width; at += 8 * scale) {
    ctx.moveTo(at, top + height);
    ctx.lineTo(at + height, top);
  }
  ctx.stroke();
  ctx.restore();
}

function drawMark(ctx, { at, kind, of, by }, { x, y, thick, scale }) {
  const lane = lanes.indexOf(of);
  if (lane < 0) return;
  const [place, middle] = [x(at), y(lane + 0.5)];
  if (kind === "overtaken") {
    const to = lanes.indexOf(by);
    if (to < 0) return;
    const [start, end] = to > lane ? [middle + thick / 2, y(to + 0.5) - thick / 2] : [middle - thick / 2, y(to + 0.5) + thick / 2];
    const head = (end > start ? -6 : 6) * scale;
    ctx.strokeStyle = ctx.fillStyle = colour("--text");
    ctx.lineWidth = 2 * scale;
    ctx.beginPath();
    ctx.moveTo(place, start);
    ctx.lineTo(place, end + head);
    ctx.stroke();
    ctx.beginPath();
    ctx.moveTo(place, end);
    ctx.lineTo(place - 5 * scale, end + head);
    ctx.lineTo(place + 5 * scale, end + head);
    ctx.fill();
    return;
  }
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  if (kind !== "fenced" && kind !== "wrote") {
    ctx.fillStyle = colour("--quiet");
    ctx.font = `700 ${12 * scale}px system-ui, sans-serif`;
    ctx.fillText(MARKS[kind], place, middle);
    return;
  }
  // A shield: what came was refused, or (broken) was not.
  const size = 9 * scale;
  ctx.fillStyle = colour(kind === "fenced" ? "--good-strong" : "--accent");
  ctx.strokeStyle = colour("--card");
  ctx.lineWidth = 1.5 * scale;
  ctx.beginPath();
  ctx.moveTo(place - size, middle - size);
  ctx.lineTo(place, middle - size * 1.3);
  ctx.lineTo(place + size, middle - size);
  ctx.lineTo(place + size, middle + size * 0.2);
  ctx.quadraticCurveTo(place + size * 0.8, middle + size, place, middle + size * 1.4);
  ctx.quadraticCurveTo(place - size * 0.8, middle + size, place - size, middle + size * 0.2);
  ctx.closePath();
  ctx.fill();
  ctx.stroke();
  ctx.fillStyle = colour("--on-accent");
  ctx.font = `700 ${11 * scale}px system-ui, sans-serif`;
  ctx.fillText(MARKS[kind], place, middle);
}

// -- looking closer ----------------------------------------------------------------------------------------------------

function zoomTo(u) {
  const { left, width } = u.select;
  if (width < NEAR_PX) return;
  frozen = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
  u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  refresh();
}

function zoom(by) {
  frozen = null;
  span = SPANS_S[Math.min(SPANS_S.length - 1, Math.max(0, SPANS_S.indexOf(span) + by))];
  refresh();
}

function live() {
  frozen = null;
  choose(null);
  refresh();
}

function refresh() {
  part("lanes-live").hidden = frozen === null;
  plot?.setData([[now - KEPT_S, now], [null, null]]);
}

function point({ left, top }) {
  if (plot === null || left < 0 || top < 0) return;
  const lane = Math.floor((top / plot.over.clientHeight) * lanes.length);
  const at = plot.posToVal(left, "x");
  const near = plot.posToVal(left + NEAR_PX, "x") - at;
  const found = [...bars.values()]
    .filter(({ instance, from, until }) => instance === lanes[lane] && from - near <= at && at <= until + near)
    .sort((one, other) => distance(one, at) - distance(other, at))[0];
  if (found) choose(found);
}

const distance = ({ from, until }, at) => Math.abs((from + until) / 2 - at);

function choose(bar) {
  chosen = bar;
  tell(bar);
  plot?.redraw(false);
}

function tell(bar) {
  write(part("lanes-said"), bar === null ? texts.lanesHint : words(bar));
}

function words({ instance, token, from, until, purchases, units, waited, over }) {
  const span = over ? texts.heldThen(milliseconds((until - from) * 1_000)) : texts.heldNow(seconds(Math.round(until - from)));
  const what = purchases === null ? "" : texts.barLabel(number(purchases), number(units));
  const before = waited === null ? "" : texts.waitedFor(milliseconds(waited));
  return [instance, texts.token(token), moment(from), span, what, before].filter(Boolean).join(" · ");
}

function step(by) {
  const all = [...bars.values()].sort((one, other) => one.from - other.from);
  if (all.length === 0) return;
  const place = chosen === null ? (by > 0 ? -1 : all.length) : all.findIndex(({ instance, token }) => instance === chosen.instance && token === chosen.token);
  const next = all[Math.min(all.length - 1, Math.max(0, place + by))];
  const [from, until] = range();
  if (next.from < from || next.from > until) frozen = [next.from - span / 2, next.from + span / 2];
  choose(next);
  refresh();
}

const KEYS = { ArrowRight: () => step(1), ArrowLeft: () => step(-1), "+": () => zoom(-1), "-": () => zoom(1), Escape: live };

/** Make the lanes' buttons and keys work. */
export function wireLanes() {
  const element = part("lanes-plot");
  part("lanes-in").addEventListener("click", () => zoom(-1));
  part("lanes-out").addEventListener("click", () => zoom(1));
  part("lanes-live").addEventListener("click", live);
  element.addEventListener("dblclick", live);
  element.addEventListener("keydown", (event) => {
    const act = KEYS[event.key];
    if (act === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
  new ResizeObserver(() => plot?.setSize({ width: element.clientWidth, height: element.clientHeight })).observe(element);
  onLight(() => plot?.redraw(false));
  tell(null);
}
