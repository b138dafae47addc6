// An order as a row: "2 units, €998.00 · paid 00:47", and whose it is.

import { texts } from "./ledger_texts.js";
import { make } from "./dom.js";
import { number } from "./figure.js";
import { addUp, owedOf, sums, written } from "./money.js";
import { nameOf, numberOf } from "./order_id.js";

const style = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
const clock = new Intl.DateTimeFormat(texts.locale, style);
const dated = new Intl.DateTimeFormat(texts.locale, { ...style, month: "short", day: "numeric" });
const day = new Intl.DateTimeFormat(texts.locale, { weekday: "long", month: "long", day: "numeric", year: "numeric" });

const sum = (amount, { currency }) => written(amount, currency, texts.locale);

/** The day on which an order began, for people. */
export const dayOf = ({ sold_at: at }) => day.format(at * 1_000);

/** Sums of a report in words, without those that are none. */
export function moneyOf(money, which) {
  return which.map((one) => [one, sums(money, one, texts.locale)]).flatMap(([one, sum]) => (sum ? [texts.sums[one](sum)] : []));
}

/** The time of a moment; with its day, if that is another one than the order's. */
export function timeOf(at, order) {
  return (dayOf({ sold_at: at }) === dayOf(order) ? clock : dated).format(at * 1_000);
}

/** The lines of a basket; none of an order of one item, which says all by itself. */
export const linesOf = ({ items }) => (items.length > 1 ? items.filter(({ quantity }) => quantity > 0) : []);

/** A line, or some units of it: "2 × case". */
export const lineOf = ({ sku, quantity }) => `${number(quantity)} × ${sku}`;

/** What was ordered, and for how much: "2 units, €998.00", or "2 × case, 1 × phone, €540.00". */
export function whatOf(order) {
  const units = linesOf(order).map(lineOf).join(texts.comma) || texts.units(order.quantity, number(order.quantity));
  return order.to_pay === null ? units : units + texts.comma + sum(order.to_pay, order);
}

/** How an order stands, and since when: "paid 00:47". */
export function standingOf(order) {
  const at = order.state === "held" ? order.pay_by : (order.since ?? (order.state === "sold" ? order.sold_at : null));
  return at === null ? texts.states[order.state] : texts.stands[order.state](timeOf(at, order));
}

/** What is still to be done about an order; "" if it is nothing. */
export function needOf(order) {
  const { payments } = order;
  const owed = sums(addUp([order]), "owed", texts.locale);
  const found = [
    owed && texts.sums.owed(owed),
    payments.flatMap(owedOf).some(({ state }) => state === "failed") && texts.failed,
    payments.flatMap((one) => one.disputes).some(({ state }) => state === "open") && texts.disputed,
    payments.some(({ waits }) => waits) && texts.wrongAmount,
  ].filter(Boolean);
  return found.join(texts.comma) || (order.attention ? texts.states.attention : "");
}

/** What was given back of each payment; that a whole order was refunded its state says. */
function backOf({ state, payments }) {
  const all = ({ amount, refunds }) => amount === null && refunds.some((one) => one.state === "given" && one.amount === null);
  const given = payments.filter((one) => (one.given_back > 0 || all(one)) && (one.state !== "counts" || state !== "refunded"));
  return given.map((one) => texts.ofPayment[one.state](texts.sums.given_back(all(one) ? texts.all : sum(one.given_back, one)))).join(texts.comma);
}

/** The row of an order; `open()` shows it. */
export function orderRow(order, sku, open) {
  const id = nameOf(order.id);
  const name = make("button", "open", sku ? numberOf(id) : id);
  name.type = "button";
  name.setAttribute("aria-label", texts.order(id));
  const head = make("th", "name", name);
  head.scope = "row";
  const pill = make("span", "pill", standingOf(order));
  pill.dataset.kind = order.state;
  const state = make("td", "state", pill);
  const need = needOf(order);
  if (need) state.append(" ", make("strong", "need", need));
  const what = make("td", "what", ...(sku || linesOf(order).length > 0 ? [] : [make("span", "of", order.sku), " "]), whatOf(order), " ", make("span", "small", backOf(order)));
  const began = make("td", "number began", clock.format(order.sold_at * 1_000));
  const made = make("tr", "", what, state, make("td", "buyer", order.buyer ?? ""), make("td", "ref", order.ref ?? ""), head, began);
  made.dataset.order = id;
  made.addEventListener("click", () => open(id));
  return made;
}

/** The orders as a body of the table for each day, with the day's name and the money of these. */
export function days(orders, sku, open) {
  const bodies = [];
  for (const order of orders) {
    const name = dayOf(order);
    if (bodies.at(-1)?.name !== name) bodies.push({ name, orders: [] });
    bodies.at(-1).orders.push(order);
  }
  return bodies.map(({ name, orders: of }) => {
    const said = [texts.ofDay(of.length, number(of.length)), ...moneyOf(addUp(of), ["paid", "kept"])].join(texts.comma);
    const head = make("th", "", make("strong", "", name), " ", make("span", "small", said));
    head.colSpan = 6;
    head.scope = "rowgroup";
    const line = make("tr", "day", head);
    return make("tbody", "", line, ...of.map((order) => orderRow(order, sku, open)));
  });
}
