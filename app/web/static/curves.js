// The two charts: the stock, which falls as it is sold, and the buyers whom each instance serves.

import { Chart } from "./chart.js";
import { colour, colourOf, plate } from "./colour.js";
import { texts } from "./control_texts.js";
import { part, write } from "./dom.js";
import { about, number } from "./figure.js";
import { levels, rates, ratesNow, seen, span } from "./history.js";

let initial = 1;
let fastest = 1;
let sellers = "";

const levelChart = new Chart(part("levels"), { top: () => initial, value: number });
levelChart.draw([
  { label: texts.words.held, colour: () => colour("--held"), area: () => colour("--held-area") },
  { label: texts.words.left, colour: () => colour("--stock"), area: () => colour("--stock-area") },
]);
const rateChart = new Chart(part("rates"), { top: () => fastest, value: about });

/** Draw the history, and describe it in words. */
export function showCurves(picture) {
  showLevels(picture.level);
  showRates();
}

function showLevels(level) {
  if (level !== null) initial = Math.max(1, level.initial ?? 0, level.stock + (level.held ?? 0)) * 1.08; // room above the line
  part("level-held").hidden = !level?.held;
  levelChart.show(levels());
  part("levels").setAttribute("aria-label", level === null ? texts.noLevels : texts.levels(number(level.stock), number(level.lucky), level.held ? number(level.held) : null));
}

function showRates() {
  const instances = seen();
  if (instances.join() !== sellers) {
    sellers = instances.join();
    rateChart.draw(instances.map((label) => ({ label, colour: () => colourOf(label) })));
    part("sellers").replaceChildren(...instances.map(plate));
  }
  const columns = rates(instances);
  const from = span()[0];
  const shown = columns.slice(1).flatMap((column) => column.filter((_, place) => columns[0][place] >= from));
  fastest = Math.max(5, ...shown) * 1.1;
  rateChart.show(columns);
  const now = [...ratesNow()].map(([instance, value]) => texts.sells(instance, about(value)));
  part("rates").setAttribute("aria-label", texts.rates(now.join(texts.comma)));
  const total = [...ratesNow().values()].reduce((sum, value) => sum + value, 0);
  write(part("rate"), about(total));
}
