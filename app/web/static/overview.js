// All items of the sale in a table, each with the way to its own page.

import "./theme.js";
import { texts } from "./control_texts.js";
import { keyed, make, part, write } from "./dom.js";
import { about, number } from "./figure.js";
import { furnish, wireRoom } from "./room.js";
import { leave, toTheDoor } from "./session.js";

const EVERY_MS = 2_000;
const PATIENCE_MS = 10_000;
const moment = new Intl.DateTimeFormat(texts.locale, { month: "short", day: "numeric", hour: "numeric", minute: "2-digit" });

let before = null; // the last answer, for the rates

/** The address of an item's own page; without an item, of this one. */
function address(sku) {
  const query = new URLSearchParams(location.search);
  query.set("sku", sku);
  return `/control?${query}`;
}

function row({ sku }) {
  const link = make("a", "", sku);
  link.href = address(sku);
  const head = make("th", "", link);
  head.scope = "row";
  return make("tr", "", head, ...Array.from({ length: 4 }, () => make("td", "number")), make("td", ""), make("td", "state"));
}

/** Whether it is sold now, and if not, why; the worst comes first. */
function stateOf({ level, wrong }, at) {
  const { off, before: early, ended, paused } = texts.itemStates;
  if (wrong.length > 0) return ["wrong", wrong.join(texts.comma)];
  if (level === null) return ["lacking", off];
  if (level.ends_at !== null && at >= level.ends_at) return ["off", ended];
  if (level.paused) return ["pausing", paused(level.paused)];
  if (level.starts_at !== null && at < level.starts_at) return ["off", early];
  return ["ready", level.stock > 0 ? texts.health.ready : texts.health.soldOut];
}

function hoursOf(level) {
  if (level === null) return "";
  const [start, end] = [level.starts_at, level.ends_at].map((at) => (at === null ? "" : moment.format(at * 1_000)));
  return start || end ? `${start} – ${end}` : "";
}

function fill(made, { sku, level, wrong, at }) {
  const [, stock, held, sold, rate, hours, state] = made.cells;
  const was = before?.items.find((one) => one.sku === sku)?.level;
  write(stock, level === null ? "–" : number(level.stock));
  write(held, level === null ? "–" : number(level.held));
  write(sold, level === null ? "–" : number(level.lucky));
  write(rate, level && was ? about(Math.max(0, level.lucky - was.lucky) / Math.max(1, at - before.at)) : "–");
  write(hours, hoursOf(level));
  const [kind, words] = stateOf({ level, wrong }, at);
  state.dataset.kind = kind;
  write(state, words);
}

const rows = keyed(part("items"), ({ sku }) => sku, row, fill);

async function look() {
  let state = "lost";
  try {
    const answer = await fetch("/control/overview", { signal: AbortSignal.timeout(PATIENCE_MS) });
    if (answer.status === 401 || answer.status === 403) return toTheDoor();
    if (answer.ok) {
      const found = await answer.json();
      if (found.at !== before?.at) {
        rows(found.items.map((item) => ({ ...item, at: found.at })));
        before = found;
      }
      state = "live";
      write(part("connection"), texts.connection.live(found.instance));
    }
  } catch {
    // it is tried again
  }
  part("connection").dataset.state = part("room").dataset.state = state;
  if (state === "lost") write(part("connection"), texts.connection.lost());
  setTimeout(look, EVERY_MS);
}

furnish("");
wireRoom("");
part("leave").addEventListener("click", leave);
look();
