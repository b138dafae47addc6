// The provider's list of payments beside the orders: each difference is a line with its cause.

import "./theme.js";
import { texts } from "./reconcile_texts.js";
import { texts as room } from "./control_texts.js";
import { labelled, make, part, write } from "./dom.js";
import { number } from "./figure.js";
import { written } from "./money.js";
import { furnish } from "./room.js";
import { send } from "./session.js";
import { along, wireWays } from "./ways.js";

const LARGEST_BYTES = 16 * 1_048_576;
const SHOWN = 500; // lines
const PATIENCE_MS = 600_000; // it looks at all orders

let found = null; // the last answer
let shown = ""; // the cause whose lines are shown; all without

const sum = (amount, currency) => written(amount, currency, texts.locale);

function totalRow([currency, { charged, paid, refunded, given_back: back, owed, kept }]) {
  const head = make("th", "", currency || texts.noCurrency);
  head.scope = "row";
  const names = ["chargedThere", "paidHere", "backThere", "backHere", "owed", "kept"];
  const cells = [charged, paid, refunded, back, owed, kept].map((amount, place) => labelled(texts.words[names[place]], "number", sum(amount, currency)));
  cells[1].dataset.same = charged === paid;
  cells[3].dataset.same = refunded === back;
  if (owed !== 0) cells[4].dataset.kind = "wrong";
  return make("tr", "", head, ...cells);
}

function line({ cause, payment_ref: ref, orders, there, here, currency }) {
  const head = make("th", "payment", ref);
  head.scope = "row";
  const links = orders.map((order) => {
    const link = make("a", "", order);
    link.href = `/control/orders${along({ q: ref, open: order })}`;
    return link;
  });
  const pill = make("span", "pill", texts.causes[cause] ?? cause);
  const of = make("td", "of", ...links.flatMap((link) => [link, " "]));
  const names = ["there", "here", "difference"];
  const amounts = [there, here, there - here].map((amount, place) => labelled(texts.words[names[place]], "number", sum(amount, currency)));
  const made = make("tr", "", make("td", "cause", pill), head, of, ...amounts);
  made.dataset.cause = cause;
  return made;
}

function showLines() {
  const lines = found.differences.filter(({ cause }) => !shown || cause === shown);
  part("rows").replaceChildren(...lines.slice(0, SHOWN).map(line));
  const causes = Object.keys(found.causes).filter((cause) => texts.advice[cause] && (!shown || cause === shown));
  part("advice").replaceChildren(...causes.flatMap((cause) => [make("dt", "", texts.causes[cause]), make("dd", "", texts.advice[cause])]));
  write(part("more"), lines.length > SHOWN ? texts.first(number(SHOWN)) : "");
  for (const one of part("causes").children) one.setAttribute("aria-pressed", String(one.value === shown));
}

function causeButton([cause, count]) {
  const made = make("button", "", cause ? texts.causes[cause] : texts.allCauses, make("span", "count", number(count)));
  made.type = "button";
  made.value = cause;
  made.addEventListener("click", () => {
    shown = cause;
    showLines();
  });
  return made;
}

function show(answer) {
  [found, shown] = [answer, ""];
  const { count, lines, causes, totals } = answer;
  part("result").hidden = false;
  part("result").dataset.result = count === 0 ? "good" : "bad";
  write(part("result-title"), count === 0 ? texts.agrees : texts.differ(count, number(count)));
  write(part("result-said"), texts.read(number(lines)));
  part("totals").replaceChildren(...Object.entries(totals).map(totalRow));
  part("differences").hidden = count === 0;
  part("causes").replaceChildren(...[["", count], ...Object.entries(causes)].map(causeButton));
  showLines();
  part("result-title").focus();
}

function say(kind, words) {
  part("give-said").dataset.kind = kind;
  write(part("give-said"), words);
}

/** When the list begins, as the service reads it. */
function since() {
  const typed = part("since").value;
  return typed ? { since: new Date(typed).toISOString() } : {};
}

async function compare(parameters, body, type) {
  const buttons = [...part("give").querySelectorAll("button")];
  if (buttons.some((one) => one.getAttribute("aria-disabled") === "true")) return;
  for (const one of buttons) one.setAttribute("aria-disabled", "true"); // not disabled: the keyboard's focus stays here
  say("waiting", room.oneMoment);
  const path = `/orders/reconcile?${new URLSearchParams({ ...parameters, ...since() })}`;
  const { answer, problem } = await send("POST", path, { body, type, patienceMs: PATIENCE_MS });
  for (const one of buttons) one.removeAttribute("aria-disabled");
  if (problem !== undefined) return say("problem", problem);
  say("done", "");
  show(answer);
}

function chosen(file) {
  if (!file) return;
  write(part("file-name"), file.name);
  say("waiting", file.size > LARGEST_BYTES ? texts.tooLarge : "");
}

furnish("");
wireWays();
part("file").addEventListener("change", () => chosen(part("file").files[0]));
part("drop").addEventListener("dragover", (event) => event.preventDefault());
part("drop").addEventListener("drop", (event) => {
  event.preventDefault();
  part("file").files = event.dataTransfer.files;
  chosen(part("file").files[0]);
});
part("give").addEventListener("submit", (event) => {
  event.preventDefault();
  const [file] = part("file").files;
  if (!file) return say("problem", texts.noFile);
  if (file.size > LARGEST_BYTES) return say("problem", texts.tooLarge);
  const lines = /\.(jsonl|ndjson)$/i.test(file.name);
  compare({ format: lines ? "jsonl" : "csv" }, file, lines ? "application/jsonl" : "text/csv");
});
part("stripe").addEventListener("click", () => compare({ stripe: "true" }));
