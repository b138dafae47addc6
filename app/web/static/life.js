// The life of an order, as a story: what happened, with its money, and who did it; and what can be done with it now.

import { texts } from "./ledger_texts.js";
import { texts as room } from "./control_texts.js";
import { confirmed as ask } from "./dialog.js";
import { make, part, write } from "./dom.js";
import { number } from "./figure.js";
import { addUp, owedOf, written } from "./money.js";
import { nameOf, shorten } from "./order_id.js";
import { lineOf, linesOf, moneyOf, needOf, standingOf, whatOf } from "./order_row.js";
import { texts as report } from "./overview_texts.js";
import { askRefund, newKey } from "./refund.js";
import { command } from "./session.js";

const TAKEN = new Set(["refunded", "dispute_lost"]); // events that take money back
// Facts that are said otherwise, or say nothing.
const OWN = new Set(["amount", "currency", "about", "state", "message", "outcome", "quantity", "goes_back_at", "refunds", "disputes", "changes", "sums"]);
const DIGITS = 8; // as much of a name as tells it from the others
const MOMENTS = ["pay_by", "paid_at"];
const AMOUNTS = ["price", "expected", "subtotal"];
const clock = new Intl.DateTimeFormat(texts.locale, { dateStyle: "short", timeStyle: "medium" });

/** A moment, in seconds since 1970, with its day. */
export const moment = (at) => clock.format(at * 1_000);

function said(name, value, currency) {
  if (value === null || value === "" || value === false || (Array.isArray(value) && value.length === 0)) return null;
  const words = name === "by" ? report.by : texts.said[name] ?? ((it) => `${name} ${it}`);
  if (MOMENTS.includes(name)) return words(moment(value));
  if (AMOUNTS.includes(name) && Number.isInteger(value)) return words(written(value, currency, texts.locale));
  if (name === "lines") return words(value.map(lineOf).join(texts.comma));
  return words(Array.isArray(value) ? value.join(" ") : String(value), value);
}

const sumOf = (amount, currency) => ((amount ?? null) === null ? texts.all : written(amount, currency, texts.locale));

const headed = (title, sum) => make("p", "happened", make("strong", "", title), ...(sum ? [" ", make("span", "amount", sum)] : []));

/** Which refund became what with an event; how much it is, if the event doesn't say it. */
function refundSaid({ name, state, amount, currency, way }, facts) {
  const sum = amount === facts.amount ? [] : [sumOf(amount, currency ?? facts.currency)];
  return [texts.refundOf(name.slice(0, DIGITS)), ...sum, texts.refunds[state], texts.ways[way]].filter(Boolean).join(" ");
}

function step({ kind: of, at, token, batch, facts }, currency) {
  // Units may go back before their money does.
  const kind = of === "refunded" && facts.refunds?.some(({ state }) => state === "due") && !facts.changes?.some((one) => one.given_back) ? "refund_due" : of;
  const time = make("time", "", moment(at));
  time.dateTime = new Date(at * 1_000).toISOString();
  const { amount } = facts;
  const title = headed(texts.kinds[kind] ?? kind, amount > 0 && (TAKEN.has(kind) ? "−" : "") + sumOf(amount, facts.currency ?? currency));
  const words = Object.entries(facts).filter(([name]) => !OWN.has(name)).map(([name, value]) => said(name, value, name === "subtotal" ? facts.currency : currency)).filter(Boolean);
  words.push(...(facts.refunds ?? []).map((one) => refundSaid(one, facts)));
  if (facts.restock === false && of === "refunded") words.push(texts.notRestocked);
  const made = make("li", "", time, title);
  if (words.length > 0) made.append(make("span", "words", words.join(room.comma)));
  made.append(make("span", "small", texts.written(token, batch.slice(0, DIGITS))));
  made.dataset.kind = kind;
  return made;
}

function factsOf(order) {
  const { item, buyer, ref, short, request } = texts.facts;
  return [
    [item, order.items.length === 1 && order.sku],
    [buyer, order.buyer],
    [ref, order.ref],
    [short, shorten(order.id)],
    [request, order.request_id],
  ].flatMap(([name, value]) => (value ? [make("dt", "", name), make("dd", "", value)] : []));
}

/** A line of a basket, which can be taken out while it is held. */
function basketLine(one, { state, currency, items }, add) {
  const made = make("li", "", headed(lineOf(one), one.price !== null && sumOf(one.price * one.quantity, currency)));
  if (one.price !== null) made.append(make("span", "small", texts.said.price(sumOf(one.price, currency))));
  if (state === "held" && linesOf({ items }).length > 1) made.append(" ", add("cancel", texts.takeOut(one.sku), { sku: one.sku }));
  return made;
}

/** A payment, with what went back of it, or is to, and what can be done about that. */
function payment(one, add, giveBack) {
  const line = (title, sum, ...parts) => make("li", "", headed(title, sum), make("span", "small", parts.filter(Boolean).join(" · ")));
  const found = line(one.ref, one.amount !== null && sumOf(one.amount, one.currency), texts.payments[one.state], ...one.disputes.map(({ state, amount }) => `${texts.disputes[state]} ${sumOf(amount, one.currency)}`));
  const refunds = one.refunds.map((refund) => {
    const { name, state, amount, currency, way, by, why } = refund;
    const sum = sumOf(amount, currency ?? one.currency);
    const of = line(texts.refunds[state], sum, texts.ways[way], by && report.by(by), why && texts.said.why(why), name);
    of.dataset.kind = state;
    if (state === "failed") of.append(add("refund/retry", texts.retry(sum), { name }));
    if (owedOf(one).includes(refund)) of.append(add("refund", texts.giveBack(sum), { name, restock: false }));
    return of;
  });
  if (one.waits) found.append(giveBack(one));
  if (refunds.length > 0) found.append(make("ul", "", ...refunds));
  return found;
}

/** Show an order and its events; `again()` shows it anew when something was done with it. `cashier`: somebody gives back what is owed. */
export function showLife({ order, steps, place = null }, cashier, again) {
  const stateOf = ({ kind, facts }) => facts.state ?? kind;
  const since = steps.findLast((one, place) => place === 0 || stateOf(one) !== stateOf(steps[place - 1])).at;
  write(part("done"), "");
  write(part("life-title"), texts.order(nameOf(order.id)));
  write(part("life-state"), standingOf({ ...order, since }));
  part("life-state").dataset.kind = order.state;
  write(part("life-sum"), whatOf(order));
  const money = moneyOf(addUp([order]), ["paid", "given_back", "kept"]);
  write(part("life-money"), [place && texts.place(number(place.number), number(place.held)), ...money, order.unknown && texts.unknown, needOf(order)].filter(Boolean).join(" · "));
  const add = (...how) => button(order, again, ...how);
  part("life-lines").replaceChildren(...linesOf(order).map((one) => basketLine(one, order, add)));
  const giveBack = (one, whole = false) => refundButton(order, again, one, { cashier, whole });
  part("payments").replaceChildren(...order.payments.map((one) => payment(one, add, giveBack)));
  part("facts").replaceChildren(...factsOf(order));
  part("steps").replaceChildren(...steps.map((one) => step(one, order.currency)));
  part("actions").replaceChildren();
  const ends = { held: texts.cancel, waiting: texts.leave }[order.state];
  if (ends) part("actions").append(add("cancel", ends));
  if (["sold", "confirmed"].includes(order.state)) part("actions").append(giveBack(order.payments.find(({ ref }) => ref === order.payment_ref) ?? null, true));
  part("life").hidden = false;
}

function pressable(text, act) {
  const made = make("button", "plain danger", text);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

/** Have the service do something with an order, and say what became of it. */
async function send(of, again, what, body, said, key) {
  write(part("done"), room.oneMoment);
  const { answer, problem } = await command("POST", `/orders/${encodeURIComponent(nameOf(of.id))}/${what}`, body, { key });
  await again();
  write(part("done"), answer ? (said(answer.outcome) ?? answer.outcome ?? texts.retried) : problem);
}

function button(of, again, what, words, body) {
  return pressable(words.button, async () => {
    if (!(await ask(words))) return write(part("done"), room.nothingDone);
    send(of, again, what, body, (outcome) => texts.outcomes[outcome], body?.sku && newKey());
  });
}

function refundButton(of, again, payment, how) {
  return pressable(texts.refund.button, async () => {
    const asked = await askRefund(of, payment, how);
    if (asked === null) return write(part("done"), room.nothingDone);
    const { wish, key, sum } = asked;
    const done = wish.later ? { refunded: texts.refund.asked(sum), partly_refunded: texts.refund.asked(sum) } : {};
    send(of, again, "refund", wish, (outcome) => done[outcome] ?? texts.outcomes[outcome], key);
  });
}
