// The orders of an item for the operator: find one, look at its life, cancel, refund, export.

import "./theme.js";
import { texts } from "./ledger_texts.js";
import { texts as room } from "./control_texts.js";
import { make, part, write } from "./dom.js";
import { number } from "./figure.js";
import { written } from "./money.js";
import { named, nameOf, numberOf, skuOf } from "./order_id.js";
import { furnish, wireRoom } from "./room.js";
import { command, leave, toTheDoor } from "./session.js";
import { wireUndelivered } from "./undelivered.js";

const PAGE = 50;
const PATIENCE_MS = 20_000;
const AMOUNTS = ["price", "amount", "expected", "subtotal", "given_back"]; // facts of events
const FIELDS = ["state", "number", "buyer", "ref"];
const query = new URLSearchParams(location.search);
const sku = query.get("sku") ?? ""; // all items without
const clock = new Intl.DateTimeFormat(texts.locale, { dateStyle: "short", timeStyle: "medium" });
const moment = (at) => clock.format(at * 1_000);

let begins = [null]; // where each page begins that was seen, the last one is shown
let next = null; // where the next one begins
let turn = 0; // of the last look: an earlier one that comes late is dropped
let opened = null; // the number of the order whose life is shown

const money = ({ to_pay: minor, currency }) => (minor === null ? "" : written(minor, currency, texts.locale));

/** What is looked for, as the parameters of a request. */
function wanted(fields = FIELDS) {
  const found = new URLSearchParams(sku && { sku });
  for (const name of fields) {
    const value = part(name).value.trim();
    if (value) found.set(name, name === "number" ? named(value, sku) : value);
  }
  const of = skuOf(found.get("number") ?? "");
  if (of) found.set("sku", of);
  return found;
}

async function read(path) {
  try {
    const answer = await fetch(path, { signal: AbortSignal.timeout(PATIENCE_MS) });
    if (answer.status === 401) return toTheDoor();
    const said = await answer.json();
    return answer.ok ? { answer: said } : { problem: room.problem(said.title, said.detail) };
  } catch {
    return { problem: room.noAnswer };
  }
}

function row(order) {
  const id = nameOf(order.id);
  const open = make("button", "open", sku ? numberOf(id) : id);
  open.type = "button";
  open.setAttribute("aria-label", texts.order(id));
  const head = make("th", "", open);
  head.scope = "row";
  const words = order.attention ? texts.states[order.state] + room.comma + texts.states.attention : texts.states[order.state];
  const state = make("td", "state", words);
  state.dataset.kind = order.attention ? "wrong" : order.state;
  const cells = [state, make("td", "number", number(order.quantity)), make("td", "", order.buyer ?? ""), make("td", "", order.ref ?? "")];
  const made = make("tr", "", head, ...cells, make("td", "number", money(order)), make("td", "", moment(order.sold_at)));
  made.dataset.order = id;
  made.addEventListener("click", () => show(id));
  return made;
}

/** Read a page: as many requests as it takes, as each looks at some thousand orders only. */
async function look() {
  const mine = ++turn;
  const found = [];
  const unread = [];
  let [after, looked] = [begins.at(-1), 0];
  part("rows").setAttribute("aria-busy", "true");
  do {
    const about = wanted();
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
    else if (!sku && part("number").value.trim() && found.length === 0) write(part("said"), texts.withItem);
    else write(part("said"), texts.shown(number(found.length)));
  } while (after && found.length < PAGE);
  next = after;
  part("rows").replaceChildren(...found.map(row));
  part("rows").removeAttribute("aria-busy");
  mark();
  part("previous").setAttribute("aria-disabled", String(begins.length === 1));
  part("next").setAttribute("aria-disabled", String(!next));
}

function mark() {
  for (const one of part("rows").children) one.setAttribute("aria-current", String(one.dataset.order === opened));
}

function begin() {
  begins = [null];
  const about = new URLSearchParams(location.search);
  for (const name of FIELDS) {
    if (part(name).value) about.set(name, part(name).value);
    else about.delete(name);
  }
  history.replaceState(null, "", `?${about}`);
  const all = wanted(FIELDS.filter((name) => name !== "number"));
  for (const format of ["csv", "jsonl"]) part(format).href = `/orders/export?format=${format}&${all}`;
  look();
}

// -- the life of an order ----------------------------------------------------------------------------------------------

function step({ kind, at, token, batch, facts }, currency) {
  const time = make("time", "", moment(at));
  time.dateTime = new Date(at * 1_000).toISOString();
  const said = Object.entries(facts).map(([name, value]) => {
    const of = (name === "amount" && facts.currency) || currency; // a payment may be of another one than the order
    if (["pay_by", "paid_at"].includes(name)) return `${name} ${moment(value)}`;
    if (AMOUNTS.includes(name) && Number.isInteger(value)) return `${name} ${written(value, of, texts.locale)}`;
    return `${name} ${Array.isArray(value) ? value.join(" ") : value}`;
  });
  const made = make("li", "", time, make("strong", "", texts.kinds[kind] ?? kind));
  if (said.length > 0) made.append(make("span", "", said.join(room.comma)));
  made.append(make("span", "small", texts.written(token, batch)));
  made.dataset.kind = kind;
  return made;
}

function factsOf(order) {
  const { item, buyer, ref, units, toPay, payBy, payment, due, givenBack, disputed, failed, request, key } = texts.facts;
  const sum = (amount) => amount > 0 && written(amount, order.currency, texts.locale);
  const owed = [...order.refunds_due, ...(order.amount_due > 0 ? [sum(order.amount_due)] : [])];
  return [
    [item, order.sku],
    [buyer, order.buyer],
    [ref, order.ref],
    [units, number(order.quantity)],
    [toPay, money(order)],
    [payBy, order.pay_by && moment(order.pay_by)],
    [payment, order.payment_ref],
    [due, owed.join(room.comma)],
    [givenBack, sum(order.amount_refunded)],
    [disputed, order.disputed.join(room.comma)],
    [failed, order.failed.join(room.comma)],
    [request, order.request_id],
    [key, order.key],
  ].flatMap(([name, value]) => (value ? [make("dt", "", name), make("dd", "", value)] : []));
}

async function show(id, focus = true) {
  const { answer, problem } = await read(`/orders/${encodeURIComponent(id)}/history`);
  if (!answer) return write(part("said"), problem ?? "");
  const { order, steps } = answer;
  opened = id;
  write(part("done"), "");
  write(part("life-title"), `${texts.order(id)} · ${texts.states[order.state]}`);
  part("facts").replaceChildren(...factsOf(order));
  part("steps").replaceChildren(...steps.map((one) => step(one, order.currency)));
  part("actions").replaceChildren(...actions(order));
  part("life").hidden = false;
  mark();
  if (focus) part("life-title").focus();
}

/** The buttons for what can be done with an order now. */
function actions(order) {
  const found = order.refunds_due.map((ref) => button(order, "refund", texts.giveBack(ref), { payment_ref: ref, restock: false }));
  if (order.failed.length > 0) found.push(button(order, "refund/retry", texts.retry, {}));
  if (order.state === "held") found.push(button(order, "cancel", texts.cancel));
  if (["sold", "confirmed"].includes(order.state)) {
    const own = order.payment_ref ? { payment_ref: order.payment_ref } : {};
    found.push(button(order, "refund", texts.refund, own, true));
  }
  return found;
}

function button(order, what, words, body, restocks = false) {
  const made = make("button", "plain danger", words.button);
  made.type = "button";
  made.addEventListener("click", async () => {
    if (!(await confirmed(words, restocks))) return write(part("done"), room.nothingDone);
    write(part("done"), room.oneMoment);
    const wish = restocks ? { ...body, restock: part("restock").checked } : body;
    const { answer, problem } = await command("POST", `/orders/${encodeURIComponent(nameOf(order.id))}/${what}`, wish);
    await show(nameOf(order.id));
    write(part("done"), answer ? (texts.outcomes[answer.outcome] ?? answer.outcome ?? texts.retried) : problem);
    look();
  });
  return made;
}

function confirmed({ title, words, yes }, restocks) {
  const dialog = part("confirm");
  write(part("confirm-title"), title);
  write(part("confirm-words"), words);
  write(part("confirm-yes"), yes);
  part("restock-choice").hidden = !restocks;
  part("restock").checked = false;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

// -- the page ----------------------------------------------------------------------------------------------------------

furnish(sku);
wireRoom(sku);
part("to-room").href = `/control${location.search}`;
part("state").replaceChildren(...Object.entries(texts.states).map(([value, name]) => new Option(name, value)));
for (const name of FIELDS) part(name).value = query.get(name) ?? "";
part("filter").addEventListener("submit", (event) => {
  event.preventDefault();
  begin();
});
part("state").addEventListener("change", begin);
part("clear").addEventListener("click", () => {
  for (const name of FIELDS) part(name).value = "";
  begin();
});
part("attention").addEventListener("click", () => {
  for (const name of FIELDS) part(name).value = "";
  part("state").value = "attention";
  begin();
});
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
part("close").addEventListener("click", () => {
  const last = [...part("rows").children].find((one) => one.dataset.order === opened);
  opened = null;
  part("life").hidden = true;
  mark();
  last?.querySelector("button").focus();
});
part("leave").addEventListener("click", leave);
wireUndelivered(sku, moment);
begin();
