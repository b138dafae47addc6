// Lanes over time, in an element: bars, where they stood still, leases that run out, who took over, what was refused.

import uPlot from "./uplot-1.6.32.js";
import { colour, colourOf, onLight } from "./colour.js";

const NEAR_PX = 6;
const BRIEF_S = 0.25; // the lease of a shorter grant is not drawn
const HEAD = 1.5; // lanes' room above them, where labels of bands stand
const SIGNS = { fenced: "✕", wrote: "!", came: "▲", left: "▼", silent: "…", back: "▲" };

/**
 * A reader looks closer by dragging, goes from bar to bar with the arrow keys, and back with Esc.
 *
 * `whole()` says from when to when is shown unless somebody has looked closer, `moment(at)` writes a moment, `tell(bar)`
 * is told which bar is pointed at (null: none), `closer(range)` what somebody looks at (null: the whole).
 */
export class LanePlot {
  #element;
  #how;
  #plot = null;
  #range = null; // the time that somebody looks at
  #chosen = null; // the bar that is told of
  #what = { lanes: [], bars: [], leases: [], marks: [], bands: [] };

  constructor(element, how) {
    this.#element = element;
    this.#how = how;
    const keys = {
      ArrowRight: () => this.#step(1),
      ArrowLeft: () => this.#step(-1),
      Escape: () => this.back(),
    };
    element.addEventListener("dblclick", () => this.back());
    element.addEventListener("keydown", (event) => {
      const act = keys[event.key];
      if (act === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
    });
    new ResizeObserver(() => this.#plot?.setSize(this.#size())).observe(element);
    onLight(() => this.#plot?.redraw(false));
    how.tell(null);
  }

  /**
   * Show these. `lanes`: each an `id`, a `name` and the `instance` whose colour it has. `bars`: each a `key`, its `lane`,
   * `from` and `until`, a `label`, and from when until when it was `lost` (true: all along), and stood `still`, if it was or did. `leases`: lane,
   * from, until. `marks`: `at` a moment a `kind` of thing happened in a `lane`; of a take-over also `to` which. `bands`,
   * over all lanes: from, until, a `label` that stands on a line (`row`), and whether it is `bad`.
   */
  show(what) {
    const anew = what.lanes.map(({ id }) => id).join() !== this.#what.lanes.map(({ id }) => id).join();
    this.#what = what;
    if (anew || this.#plot === null) this.#draw();
    else this.#refresh();
    if (this.#chosen !== null) {
      this.#chosen = what.bars.find(({ key }) => key === this.#chosen.key) ?? this.#chosen;
      this.#how.tell(this.#chosen);
    }
  }

  /** The whole again, and nothing chosen. */
  back() {
    this.#look(null);
    this.#choose(null);
    this.#refresh();
  }

  #shown() {
    return this.#range ?? this.#how.whole();
  }

  #look(range) {
    this.#range = range;
    this.#how.closer(range);
  }

  #refresh() {
    this.#plot?.setData([this.#how.whole(), [null, null]]);
  }

  #head() {
    return this.#what.bands.length > 0 ? HEAD : 0;
  }

  #size() {
    return { width: this.#element.clientWidth, height: this.#element.clientHeight };
  }

  // -- drawing -------------------------------------------------------------------------------------------------------

  #draw() {
    this.#plot?.destroy();
    const { lanes } = this.#what;
    this.#element.style.setProperty("--lanes", lanes.length + this.#head());
    const axis = { stroke: () => colour("--quiet"), font: "11px system-ui, sans-serif", ticks: { show: false } };
    const longest = Math.max(0, ...lanes.map(({ name }) => name.length));
    this.#plot = new uPlot(
      {
        ...this.#size(),
        padding: [4, 30, 0, 0],
        legend: { show: false },
        cursor: { sync: { key: "control" }, drag: { x: true, y: false, setScale: false }, y: false, points: { show: false } },
        select: { show: true },
        scales: { x: { range: () => this.#shown(), time: false }, y: { range: () => [-this.#head(), lanes.length], dir: -1 } },
        axes: [
          { ...axis, size: 22, gap: 2, space: 72, grid: { stroke: () => colour("--edge"), width: 1 }, values: (_, moments) => moments.map(this.#how.moment) },
          { ...axis, scale: "y", side: 3, size: Math.max(58, 12 + longest * 7), gap: 6, grid: { show: false }, splits: () => lanes.map((_, lane) => lane + 0.5), values: () => lanes.map(({ name }) => name), font: "600 12px system-ui, sans-serif" },
        ],
        series: [{}, { paths: () => null, points: { show: false } }],
        hooks: {
          draw: [(u) => this.#drawAll(u)],
          setCursor: [({ cursor }) => this.#point(cursor)],
          setSelect: [(u) => this.#zoomTo(u)],
        },
      },
      [this.#how.whole(), [null, null]],
      this.#element,
    );
  }

  #drawAll(u) {
    const { lanes, bars, leases, marks, bands } = this.#what;
    const { ctx } = u;
    const { left, top, width, height } = u.bbox;
    const scale = devicePixelRatio;
    const tall = height / (lanes.length + this.#head());
    const pen = {
      ctx,
      scale,
      x: (at) => u.valToPos(at, "x", true),
      y: (lane) => top + (lane + this.#head()) * tall,
      thick: tall * 0.56,
      laneOf: new Map(lanes.map(({ id }, lane) => [id, lane])),
    };
    const [first, last] = this.#shown();
    const inView = ({ from, until }) => until >= first && from <= last;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, width, height);
    ctx.clip();
    lanes.forEach((_, lane) => {
      ctx.fillStyle = colour(lane % 2 ? "--card" : "--inset");
      ctx.globalAlpha = 0.6;
      ctx.fillRect(left, pen.y(lane), width, tall);
    });
    ctx.globalAlpha = 1;
    drawBands(pen, bands.filter(inView), top, height);
    for (const lease of leases.filter(inView)) this.#drawLease(pen, lease);
    for (const bar of bars) if (inView(bar)) this.#drawBar(pen, bar);
    for (const mark of marks) drawMark(pen, mark);
    ctx.restore();
  }

  #colourOf(id) {
    return colourOf(this.#what.lanes.find((lane) => lane.id === id).instance);
  }

  #drawLease({ ctx, scale, x, y, thick, laneOf }, { lane, from, until }) {
    if (until - from < BRIEF_S || !laneOf.has(lane)) return;
    const height = y(laneOf.get(lane) + 0.5) + thick / 2 + 6 * scale;
    ctx.strokeStyle = this.#colourOf(lane);
    ctx.lineWidth = 2 * scale;
    ctx.beginPath();
    ctx.moveTo(x(from), height);
    ctx.lineTo(x(until), height);
    ctx.moveTo(x(until), height - 3 * scale);
    ctx.lineTo(x(until), height + 3 * scale);
    ctx.stroke();
  }

  #drawBar({ ctx, scale, x, y, thick, laneOf }, { key, lane, from, until, label, still, lost }) {
    if (!laneOf.has(lane)) return;
    const [start, high] = [x(from), y(laneOf.get(lane) + 0.5) - thick / 2];
    const wide = Math.max(2 * scale, x(until) - start);
    ctx.fillStyle = this.#colourOf(lane);
    ctx.fillRect(start, high, wide, thick);
    if (still) hatch(ctx, x(still.from), high, Math.max(0, x(Math.min(still.until, until)) - x(still.from)), thick, scale);
    const chosen = key === this.#chosen?.key;
    const frame = (left, right, name) => {
      ctx.strokeStyle = colour(name);
      ctx.lineWidth = 2 * scale;
      ctx.strokeRect(left - 2 * scale, high - 2 * scale, right - left + 4 * scale, thick + 4 * scale);
    };
    if (lost === true) frame(start, start + wide, "--accent");
    else if (lost) frame(x(lost.from), Math.max(x(lost.from), x(Math.min(lost.until, until))), "--accent");
    if (chosen) frame(start, start + wide, "--text");
    if (!label || still || wide < 76 * scale) return;
    ctx.fillStyle = colour("--card");
    ctx.font = `600 ${11 * scale}px system-ui, sans-serif`;
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    ctx.fillText(label, start + 6 * scale, high + thick / 2, wide - 8 * scale);
  }

  // -- looking closer --------------------------------------------------------------------------------------------------

  #zoomTo(u) {
    const { left, width } = u.select;
    if (width < NEAR_PX) return;
    this.#look([u.posToVal(left, "x"), u.posToVal(left + width, "x")]);
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.#refresh();
  }

  #point({ left, top }) {
    if (this.#plot === null || left < 0 || top < 0) return;
    const { lanes, bars } = this.#what;
    const lane = lanes[Math.floor(this.#plot.posToVal(top, "y"))]?.id;
    const at = this.#plot.posToVal(left, "x");
    const near = this.#plot.posToVal(left + NEAR_PX, "x") - at;
    const found = bars
      .filter((bar) => bar.lane === lane && bar.from - near <= at && at <= bar.until + near)
      .sort((one, other) => distance(one, at) - distance(other, at))[0];
    if (found) this.#choose(found);
  }

  #choose(bar) {
    this.#chosen = bar;
    this.#how.tell(bar);
    this.#plot?.redraw(false);
  }

  #step(by) {
    const all = [...this.#what.bars].sort((one, other) => one.from - other.from);
    if (all.length === 0) return;
    const place = this.#chosen === null ? (by > 0 ? -1 : all.length) : all.findIndex(({ key }) => key === this.#chosen.key);
    const next = all[Math.min(all.length - 1, Math.max(0, place + by))];
    const [from, until] = this.#shown();
    if (next.from < from || next.from > until) this.#look([next.from - (until - from) / 2, next.from + (until - from) / 2]);
    this.#choose(next);
    this.#refresh();
  }
}

const distance = ({ from, until }, at) => Math.abs((from + until) / 2 - at);

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

function drawBands({ ctx, scale, x }, bands, top, height) {
  ctx.font = `600 ${10 * scale}px system-ui, sans-serif`;
  ctx.textAlign = "left";
  ctx.textBaseline = "top";
  for (const { from, until, bad } of bands) {
    ctx.fillStyle = colour(bad ? "--accent" : "--warn");
    ctx.fillRect(x(from), top, Math.max(2 * scale, x(until) - x(from)), height);
  }
  for (const { from, label, row, bad } of bands) {
    ctx.fillStyle = colour(bad ? "--accent-text" : "--warn-text");
    ctx.fillText(label, x(from) + 3 * scale, top + (2 + row * 12) * scale);
  }
}

function drawMark({ ctx, scale, x, y, thick, laneOf }, { at, kind, lane: id, to }) {
  const lane = laneOf.get(id);
  if (lane === undefined) return;
  const [place, middle] = [x(at), y(lane + 0.5)];
  if (kind === "overtaken") {
    if (laneOf.has(to)) drawTakeOver({ ctx, scale, thick }, place, middle, y(laneOf.get(to) + 0.5));
    return;
  }
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  if (kind === "fenced" || kind === "wrote") {
    drawShield(ctx, scale, place, middle, kind === "fenced");
    return;
  }
  ctx.fillStyle = colour("--quiet");
  ctx.font = `700 ${12 * scale}px system-ui, sans-serif`;
  ctx.fillText(SIGNS[kind], place, middle);
}

function drawTakeOver({ ctx, scale, thick }, place, from, to) {
  const down = to > from ? 1 : -1;
  const [start, end, head] = [from + (down * thick) / 2, to - (down * thick) / 2, -6 * down * scale];
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
}

// A write was refused, or (broken) was not.
function drawShield(ctx, scale, place, middle, refused) {
  const size = 9 * scale;
  ctx.fillStyle = colour(refused ? "--good-strong" : "--accent");
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
  ctx.fillText(refused ? SIGNS.fenced : SIGNS.wrote, place, middle);
}
