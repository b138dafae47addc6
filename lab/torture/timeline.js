// The time line of a run: who believed to own which lock, in the control room's lanes, above the buyers' answers.

import uPlot from "./uplot-1.6.32.js";
import { colour, introduce, onLight } from "./colour.js";
import { part, write } from "./dom.js";
import { LanePlot } from "./lane_plot.js";

const { lanes, bars, marks, bands, until, answers } = JSON.parse(part("run").textContent);
const seconds = (value) => `${Math.round(value * 1_000) / 1_000} s`;
let range = [0, until];

function words({ name, token, from, until: end, lost, ended, waited }) {
  const held = ended ? `held for ${seconds(end - from)}${lost ? ", and lost" : ""}` : "killed while it had it";
  return `${name} · token ${token} · at ${seconds(from)} · ${held} · waited ${seconds(waited)}`;
}

const axis = { stroke: () => colour("--quiet"), font: "11px system-ui, sans-serif", ticks: { show: false }, grid: { stroke: () => colour("--edge"), width: 1 } };
const size = () => ({ width: part("answers").clientWidth, height: part("answers").clientHeight });

function drawBands({ ctx, bbox, valToPos }) {
  ctx.save();
  ctx.fillStyle = colour("--warn");
  for (const { from, until: end, bad } of bands) {
    const [left, right] = [from, end].map((at) => Math.min(bbox.left + bbox.width, Math.max(bbox.left, valToPos(at, "x", true))));
    if (!bad && right > left) ctx.fillRect(left, bbox.top, right - left, bbox.height);
  }
  ctx.restore();
}

introduce([...new Set(lanes.map(({ instance }) => instance))]);
const chart = new uPlot(
  {
    ...size(),
    padding: [8, 12, 0, 0],
    cursor: { sync: { key: "control" }, drag: { x: false, y: false }, y: false },
    legend: { live: false },
    scales: { x: { range: () => range, time: false } },
    axes: [
      { ...axis, size: 22, gap: 2, values: (_, values) => values.map(seconds) },
      { ...axis, size: Math.max(58, 12 + Math.max(0, ...lanes.map(({ name }) => name.length)) * 7), gap: 6, values: (_, values) => values.map((value) => `${value}/s`) },
    ],
    series: [{}, ...answers.series.map(({ label, stroke }) => ({ label, stroke: () => colour(stroke), width: 1.5, points: { show: false } }))],
    hooks: { drawClear: [drawBands] },
  },
  [answers.moments, ...answers.series.map(({ rates }) => rates)],
  part("answers"),
);
new ResizeObserver(() => chart.setSize(size())).observe(part("answers"));
onLight(() => chart.redraw());

const plot = new LanePlot(part("lanes"), {
  whole: () => [0, until],
  moment: seconds,
  tell: (bar) => write(part("said"), bar === null ? "Point at a bar, or use the arrow keys. Drag to look closer; Esc shows all." : words(bar)),
  closer: (chosen) => {
    range = chosen ?? [0, until];
    part("all").hidden = chosen === null;
    chart.redraw(true, true);
    chart.setData(chart.data);
  },
});
plot.show({ lanes, bars, leases: [], marks, bands });
part("in").addEventListener("click", () => plot.zoom(-1));
part("out").addEventListener("click", () => plot.zoom(1));
part("all").addEventListener("click", () => plot.back());
