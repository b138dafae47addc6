// The life of an order, as a story: what happened, with its money, and who did it; and what can be done with it now.

import { texts } from "./ledger_texts.js";
import { texts as room } from "./control_texts.js";
import { confirmed as ask } from "./dialog.js";
import { make, part, write } from "./dom.js";
import { written } from "./money.js";
import { nameOf } from "./order_id.js";
import { needOf, standingOf, whatOf } from "./order_row.js";
import { command } from "./session.js";

const TAKEN = new Set(["refunded", "dispute_lost"]); // events that take money back
const OWN = new Set(["amount", "currency", "about", "state", "message", "quantity"]); // facts that are said otherwise, or say nothing
const BATCH_DIGITS = 8; // as much of its name as tells it from the others
const MOMENTS = ["pay_by", "paid_at", "at"];
const AMOUNTS = ["price", "expected", "subtotal", "given_back"];
const clock = new Intl.DateTimeFormat(texts.locale, { dateStyle: "short", timeStyle: "medium" });

/** A moment, in seconds since 1970, with its day. */
export const moment = (at) => clock.format(at * 1_000);

function said(name, value, currency) {
  if (value === null || value === "" || value === false || (Array.isArray(value) && value.length === 0)) return null;
  const words = texts.said[name] ?? ((it) => `${name} ${it}`);
  if (MOMENTS.includes(name)) return words(moment(value));
  if (AMOUNTS.includes(name) && Number.isInteger(value)) return words(written(value, currency, texts.locale));
  return words(Array.isArray(value) ? value.join(" ") : String(value), value);
}

/** The amount that an event is about; a refund of whole payments has that of these, as earlier events have told it. */
function amountOf({ kind, facts }, steps) {
  if (Number.isInteger(facts.amount) || kind !== "refunded") return facts.amount;
  const paid = new Map(steps.map((one) => [one.facts.payment_ref, one.facts.amount]));
  return (facts.payment_refs ?? []).reduce((sum, ref) => sum + (paid.get(ref) ?? NaN), 0);
}

function step({ kind, at, token, batch, facts }, currency, amount) {
  const time = make("time", "", moment(at));
  time.dateTime = new Date(at * 1_000).toISOString();
  const of = facts.currency || currency; // a payment may be of another one than the order
  const title = make("p", "happened", make("strong", "", texts.kinds[kind] ?? kind));
  if (Number.isInteger(amount) && amount > 0) title.append(" ", make("span", "amount", (TAKEN.has(kind) ? "−" : "") + written(amount, of, texts.locale)));
  const words = Object.entries(facts).filter(([name]) => !OWN.has(name)).map(([name, value]) => said(name, value, currency)).filter(Boolean);
  if (facts.restock === false && kind === "refunded") words.push(texts.notRestocked);
  const made = make("li", "", time, title);
  if (words.length > 0) made.append(make("span", "words", words.join(room.comma)));
  made.append(make("span", "small", texts.written(token, batch.slice(0, BATCH_DIGITS))));
  made.dataset.kind = kind;
  return made;
}

function factsOf(order) {
  const { item, buyer, ref, payment, due, disputed, failed, request, key } = texts.facts;
  return [
    [item, order.sku],
    [buyer, order.buyer],
    [ref, order.ref],
    [payment, order.payment_ref],
    [due, [...order.refunds_due, ...order.parts_due].join(room.comma)],
    [disputed, order.disputed.join(room.comma)],
    [failed, order.failed.join(room.comma)],
    [request, order.request_id],
    [key, order.key],
  ].flatMap(([name, value]) => (value ? [make("dt", "", name), make("dd", "", value)] : []));
}

/** What came in and what went back, and what is left of it. */
function moneyOf({ amount, to_pay, state, amount_refunded: back, currency }) {
  const paid = amount ?? (["confirmed", "refunded"].includes(state) ? to_pay : null);
  if (paid === null) return "";
  const sum = (value) => written(value, currency, texts.locale);
  return back > 0 ? texts.balance(sum(paid), sum(back), sum(Math.max(0, paid - back))) : texts.paidSum(sum(paid));
}

/** Show an order and its events; `again()` shows it anew when something was done with it. */
export function showLife({ order, steps }, again) {
  const since = steps.findLast(({ kind }) => kind === order.state)?.at ?? null;
  write(part("done"), "");
  write(part("life-title"), texts.order(nameOf(order.id)));
  write(part("life-state"), standingOf({ ...order, since }));
  part("life-state").dataset.kind = order.state;
  write(part("life-sum"), whatOf(order));
  write(part("life-money"), [moneyOf(order), needOf(order)].filter(Boolean).join(" · "));
  part("facts").replaceChildren(...factsOf(order));
  part("steps").replaceChildren(...steps.map((one) => step(one, order.currency, amountOf(one, steps))));
  part("actions").replaceChildren(...actions(order, again));
  part("life").hidden = false;
}

/** The buttons for what can be done with an order now. */
function actions(order, again) {
  const add = (...how) => button(order, again, ...how);
  const found = order.refunds_due.map((ref) => add("refund", texts.giveBack(ref), { payment_ref: ref, restock: false }));
  if (order.failed.length > 0) found.push(add("refund/retry", texts.retry, {}));
  if (order.state === "held") found.push(add("cancel", texts.cancel));
  if (["sold", "confirmed"].includes(order.state)) {
    const own = order.payment_ref ? { payment_ref: order.payment_ref } : {};
    found.push(add("refund", texts.refund, own, true));
  }
  return found;
}

function button(order, again, what, words, body, restocks = false) {
  const made = make("button", "plain danger", words.button);
  made.type = "button";
  made.addEventListener("click", async () => {
    part("restock-choice").hidden = !restocks;
    part("restock").checked = false;
    if (!(await ask(words))) return write(part("done"), room.nothingDone);
    write(part("done"), room.oneMoment);
    const wish = restocks ? { ...body, restock: part("restock").checked } : body;
    const { answer, problem } = await command("POST", `/orders/${encodeURIComponent(nameOf(order.id))}/${what}`, wish);
    await again();
    write(part("done"), answer ? (texts.outcomes[answer.outcome] ?? answer.outcome ?? texts.retried) : problem);
  });
  return made;
}

