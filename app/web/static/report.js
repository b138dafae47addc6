// The numbers of the sale by item and by day: parcels, money, and how many paid of those who held.

import { keyed, labelled, make, part, write } from "./dom.js";
import { number } from "./figure.js";
import { sums } from "./money.js";
import { read } from "./session.js";
import { both as texts } from "./overview_texts.js";

const PATIENCE_MS = 60_000;
const LEAST_MS = 10_000;
const REST = 20; // times as long as it took: it reads all orders
const day = new Intl.DateTimeFormat(texts.locale, { weekday: "short", month: "short", day: "numeric", timeZone: "UTC" });

/** A moment of midnight where the reader is, as the service reads it: days are told in that zone. */
export function midnight(days = 0, now = new Date()) {
  const at = new Date(now.getFullYear(), now.getMonth(), now.getDate() - days);
  const minutes = -at.getTimezoneOffset();
  const pad = (value) => String(Math.floor(Math.abs(value))).padStart(2, "0");
  const date = [at.getFullYear(), pad(at.getMonth() + 1), pad(at.getDate())].join("-");
  return `${date}T00:00:00${minutes < 0 ? "-" : "+"}${pad(minutes / 60)}:${pad(minutes % 60)}`;
}

/**
 * Read the report again and again, at a distance that leaves the service its time; `show(report)` gets each. A
 * page that gave up asks again soon: the service is still at it, and makes it once.
 */
export function follow(query, show) {
  async function look() {
    let began = performance.now();
    if (!document.hidden) {
      const { answer } = await read(`/report${query()}`, PATIENCE_MS);
      if (answer) show(answer);
      else began = performance.now();
    }
    setTimeout(look, Math.max(LEAST_MS, REST * (performance.now() - began)));
  }
  look();
}

/** How many orders there are, whatever their state. */
export const count = ({ orders }) => Object.values(orders).reduce((sum, one) => sum + one, 0);

const COLUMNS = ["ordersCount", "toShip", "moneyIn", "givenBack", "owed", "kept", "unpaid", "conversion"];

const rows = keyed(
  part("days"),
  (one) => one.day,
  () => {
    const head = make("th", "");
    head.scope = "row";
    return make("tr", "", head, ...COLUMNS.map((name) => labelled(texts.words[name], "number")));
  },
  (made, one) => {
    const money = ["paid", "given_back", "owed", "kept"].map((which) => sums(one.money, which, texts.locale, "\n") || "–");
    const share = one.conversion === null ? "–" : texts.percent(number(100 * one.conversion));
    const cells = [number(count(one)), number(one.to_ship), ...money, number(one.unpaid_orders), share];
    write(made.cells[0], day.format(new Date(`${one.day}T00:00:00Z`)));
    cells.forEach((text, place) => write(made.cells[place + 1], text));
    made.cells[5].dataset.kind = money[2] === "–" ? "" : "wrong";
  },
);

/** Show the days of a report, the last one first. */
export function showDays({ days, at }) {
  part("report").hidden = days.length === 0;
  write(part("report-said"), texts.asOf(new Intl.DateTimeFormat(texts.locale, { timeStyle: "short" }).format(at * 1_000)));
  rows([...days].reverse());
}
