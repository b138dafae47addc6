// The orders of an item, or of all, for the operator: find them, look at the life of one, cancel, refund, export.

import "./theme.js";
import { texts } from "./ledger_texts.js";
import { texts as room } from "./control_texts.js";
import { make, part, write } from "./dom.js";
import { number } from "./figure.js";
import { moment, showLife } from "./life.js";
import { named, skuOf } from "./order_id.js";
import { sums } from "./money.js";
import { days } from "./order_row.js";
import { count, follow, midnight, showDays } from "./report.js";
import { furnish, wireRoom } from "./room.js";
import { read } from "./session.js";

const PAGE = 50;
const WATCH_MS = 3_000;
const SUMS = { paid: "moneyIn", given_back: "givenBack", owed: "owed", kept: "kept" };
const COUNTED = [["to_ship", "toShip"], ["from_line", "fromLine"]];
const query = new URLSearchParams(location.search);
const sku = query.get("sku") ?? ""; // all items without

let state = Object.hasOwn(texts.states, query.get("state")) ? query.get("state") : "";
let begins = [null]; // where each page begins that was seen, the last one is shown
let next = null; // where the next one begins
let turn = 0; // of the last look: an earlier one that comes late is dropped
let opened = null; // the number of the order whose life is shown
let lived = ""; // its life, as it is shown
let timer;

/** What is looked for, as the parameters of a request. */
function wanted() {
  const found = new URLSearchParams(sku && { sku });
  const text = part("q").value.trim();
  if (text) found.set("q", text);
  if (state) found.set("state", state);
  if (skuOf(text) && sku) found.set("sku", skuOf(text)); // a number with its item
  return found;
}

/** Read a page: as many requests as it takes, as each looks at some thousand orders only. */
async function look() {
  const mine = ++turn;
  const found = [];
  const unread = [];
  let [after, looked] = [begins.at(-1), 0];
  part("orders").setAttribute("aria-busy", "true");
  do {
    const about = wanted();
    about.set("since", "true");
    about.set("limit", PAGE - found.length);
    if (after) about.set("after", after);
    const { answer, problem } = await read(`/orders?${about}`);
    if (mine !== turn) return;
    if (!answer) {
      write(part("said"), problem);
      break;
    }
    found.push(...answer.orders);
    unread.push(...answer.unread);
    looked += answer.looked;
    after = answer.next;
    if (after && found.length < PAGE) write(part("said"), texts.looking(number(looked), moment(answer.until)));
    else if (unread.length > 0) write(part("said"), texts.unread(unread.join(room.comma)));
    else write(part("said"), texts.shown(number(found.length)));
  } while (after && found.length < PAGE);
  next = after;
  part("orders").replaceChildren(part("orders").tHead, ...days(found, sku, (id) => show(id)));
  part("orders").removeAttribute("aria-busy");
  mark();
  part("previous").parentElement.dataset.single = begins.length === 1 && !next;
  part("previous").setAttribute("aria-disabled", String(begins.length === 1));
  part("next").setAttribute("aria-disabled", String(!next));
}

function mark() {
  for (const one of part("orders").querySelectorAll("[data-order]")) one.setAttribute("aria-current", String(one.dataset.order === opened));
}

/** Have the address say what is shown, so that it is there again after a reload. */
function note() {
  const about = new URLSearchParams(location.search);
  for (const [name, value] of [["q", part("q").value.trim()], ["state", state], ["open", opened]]) {
    if (value) about.set(name, value);
    else about.delete(name);
  }
  history.replaceState(null, "", `?${about}`);
}

function begin() {
  begins = [null];
  note();
  for (const one of part("states").children) one.setAttribute("aria-pressed", String(one.value === state));
  for (const format of ["csv", "jsonl"]) part(format).href = `/orders/export?format=${format}&${wanted()}`;
  look();
}

async function show(id, focus = true) {
  const [{ answer, problem }, session] = await Promise.all([read(`/orders/${encodeURIComponent(id)}/history`), read("/control/session")]);
  if (!answer) return write(part("said"), problem ?? "");
  opened = id;
  note();
  const { cashier = false } = session.answer ?? {};
  lived = JSON.stringify(answer);
  showLife(answer, cashier, async () => {
    await show(id);
    look();
  });
  mark();
  if (focus) part("life-title").focus();
  if ((cashier && answer.order.owed > 0) || answer.place) watch(id);
}

/** Show an order anew when the cashier has done something about what is owed, or its place in line is another one. */
function watch(id) {
  clearTimeout(timer);
  timer = setTimeout(async () => {
    if (opened !== id) return;
    const { answer } = await read(`/orders/${encodeURIComponent(id)}/history`);
    if (opened !== id || !answer || JSON.stringify(answer) === lived) return watch(id);
    const said = part("done").textContent;
    await show(id, false);
    write(part("done"), said);
    look();
  }, WATCH_MS);
}

function close() {
  const last = part("orders").querySelector(`[data-order="${CSS.escape(opened)}"]`);
  opened = null;
  note();
  part("life").hidden = true;
  mark();
  last?.querySelector("button").focus();
}

// -- the states, and how many orders are in each -----------------------------------------------------------------------

part("states").append(
  ...Object.entries(texts.states).map(([value, name]) => {
    const made = make("button", "", name, make("span", "count"));
    made.type = "button";
    made.value = value;
    made.addEventListener("click", () => {
      state = value;
      begin();
    });
    return made;
  }),
);

function showSums({ total }) {
  const money = Object.entries(SUMS).map(([which, name]) => [name, sums(total.money, which, texts.locale, "\n")]);
  const found = [...money, ...COUNTED.map(([which, name]) => [name, total[which] > 0 ? number(total[which]) : ""])].filter(([, sum]) => sum);
  part("sums").replaceChildren(...found.map(([name, sum]) => make("div", name, make("dt", "", room.words[name]), make("dd", "", sum))));
  const counts = { ...total.orders, "": count(total), attention: total.attention };
  for (const one of part("states").children) {
    write(one.querySelector(".count"), number(counts[one.value] ?? 0));
    one.dataset.some = counts[one.value] > 0;
  }
}

// -- the page ----------------------------------------------------------------------------------------------------------

furnish(sku);
wireRoom(sku);
part("q").value = query.get("q") ?? "";
part("q").placeholder = texts.words.search;
part("filter").addEventListener("submit", (event) => {
  event.preventDefault();
  begin();
});
part("q").addEventListener("search", () => part("q").value === "" && begin()); // its cross
part("previous").addEventListener("click", () => {
  if (begins.length === 1) return;
  begins.pop();
  look();
});
part("next").addEventListener("click", () => {
  if (!next) return;
  begins.push(next);
  look();
});
part("close").addEventListener("click", close);
document.addEventListener("keydown", ({ key, target, defaultPrevented }) => key === "Escape" && !defaultPrevented && target !== part("q") && opened && !document.querySelector("dialog[open]") && close());
begin();
if (query.get("open")) show(named(query.get("open"), sku), false);
follow(
  () => `?${new URLSearchParams({ ...(sku && { sku }), since: midnight(366) })}`,
  (report) => {
    showSums(report);
    showDays(report);
  },
);
