// Curves over time.

import uPlot from "./uplot-1.6.32.js";
import { colour, onLight } from "./colour.js";
import { moment } from "./figure.js";
import { span } from "./history.js";
import { marks } from "./lanes.js";

const WHOLE = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((step) => step * 10 ** power)).flat();

const charts = new Set();
onLight(() => charts.forEach((chart) => chart.redraw()));

// Draw the marked moments in each chart.
function drawMarks(u) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.lineWidth = 1.5 * devicePixelRatio;
  ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const { at, kind } of marks()) {
    if (at < u.scales.x.min || at > u.scales.x.max) continue;
    ctx.strokeStyle = colour(kind === "fenced" ? "--good-strong" : kind === "wrote" ? "--accent" : "--quiet");
    const x = u.valToPos(at, "x", true);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

/**
 * A chart in an element. `top` gives its highest value, `value` formats values.
 */
export class Chart {
  #element;
  #plot = null;
  #top;
  #value;

  constructor(element, { top, value }) {
    this.#element = element;
    this.#top = top;
    this.#value = value;
    charts.add(this);
    new ResizeObserver(() => this.#plot?.setSize(this.#size())).observe(element);
  }

  /**
   * Have these curves: for each its `label`, its `colour` as a function, and that of the area below it, if any.
   */
  draw(curves) {
    this.#plot?.destroy();
    const faint = () => colour("--edge");
    const quiet = () => colour("--quiet");
    const axis = { stroke: quiet, font: "11px system-ui, sans-serif", grid: { stroke: faint, width: 1 }, ticks: { show: false } };
    this.#plot = new uPlot(
      {
        ...this.#size(),
        padding: [8, 26, 0, 0],
        legend: { show: false },
        cursor: { sync: { key: "control" }, drag: { x: false, y: false }, y: false },
        scales: { x: { range: () => span() }, y: { range: () => [0, this.#top()] } },
        axes: [
          { ...axis, size: 26, gap: 6, space: 72, values: (_, moments) => moments.map(moment) },
          { ...axis, size: 44, gap: 4, space: 26, incrs: WHOLE, values: (_, values) => values.map(this.#value) },
        ],
        series: [
          {},
          ...curves.map(({ label, colour: stroke, area: fill }) => ({ label, stroke, fill, width: 2, points: { show: false } })),
        ],
        hooks: { draw: [drawMarks] },
      },
      [[], ...curves.map(() => [])],
      this.#element,
    );
  }

  /** Show these columns: moments, and the values of each curve. */
  show(columns) {
    this.#plot?.setData(columns);
  }

  /** Redraw in the current colours. */
  redraw() {
    this.#plot?.redraw();
  }

  #size() {
    return { width: this.#element.clientWidth, height: this.#element.clientHeight };
  }
}
