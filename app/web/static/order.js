// An order, for people: the page asks until an instance knows, and again while it is not paid.

import { browser } from "./keep.js";
import { OWED } from "./money.js";
import { shorten, skuOf } from "./order_id.js";
import { linesOf, lookUp, shopOf } from "./orders.js";
import { beforeOf, begin, copyButton, money, nameOf, number, part, payAt, placeOf, shopTitle, showLines, showPicture, write } from "./page.js";
import { when } from "./sale.js";
import { texts } from "./texts.js";

const FIRST_PAUSE_MS = 3_000; // doubled while nobody can say
const OPEN = ["held", "waiting"];
const HELD_PAUSE_MS = 10_000; // while it waits for its payment, or in line
const LAST_PAUSE_MS = 480_000; // after it nothing is asked until the page is seen again
const FACTS = ["quantity", "amount", "refunds", "when", "until", "number"];
const moment = new Intl.DateTimeFormat(texts.locale, { dateStyle: "medium", timeStyle: "short" });

const order = new URLSearchParams(location.search).get("id") ?? "";
const sku = skuOf(order);
const kept = (browser.get(`orders.${sku}`) ?? []).find((one) => one.order === order);
const short = shorten(order);

let pauseMs = FIRST_PAUSE_MS;
let timer;

/** How an order stands, as this page says it: "held", "waiting", "left", "bought", ... */
function stateOf({ state, pay_by: payBy = null }) {
  if (state === "cancelled" && payBy === null) return "left"; // it never came to be held
  return { held: "held", waiting: "waiting", expired: "over", cancelled: "over", refunded: "refunded" }[state] ?? "bought";
}

/** What was paid, or what is to pay. */
function costs({ paid = 0, payment_ref: ref, to_pay: toPay, currency }) {
  return !currency || (paid === 0 && (ref || (toPay ?? null) === null)) ? undefined : money(paid || toPay, currency);
}

/** What came back, or is to: each refund with its sum. */
function showRefunds({ payments = [] }) {
  const found = payments.flatMap((one) => one.refunds.map((refund) => ({ ...refund, currency: refund.currency ?? one.currency, whole: one.amount })));
  const shown = found.filter(({ state }) => state === "given" || OWED.has(state));
  part("refunds").parentElement.parentElement.hidden = shown.length === 0;
  const lines = shown.map(({ state, amount, whole, currency, at }) => {
    const sum = money(amount ?? whole ?? 0, currency);
    const line = document.createElement("li");
    line.textContent = state === "given" ? texts.refunds.given(sum, at && moment.format(at * 1_000)) : texts.refunds.other(sum);
    return line;
  });
  part("refunds").replaceChildren(...lines);
}

function show(state, found = {}, at = undefined) {
  part("shop").dataset.state = state;
  const inLine = state === "waiting" && found.place; // else there is no telling
  write("state", inLine ? placeOf(found) : texts.states[state][0]);
  write("remark", (inLine && beforeOf(found, found.now)) || texts.states[state][1]);
  const goesOn = payAt !== "" && OPEN.includes(state);
  write("back", goesOn ? texts.goOn[state] : texts.back);
  part("back").href = shopOf(sku === "" ? "default" : sku, goesOn ? order : null);
  showRefunds(found);
  showLines(found, sku);
  const lines = linesOf(found).length;
  if (lines > 0) write("item", texts.basket(number.format(lines)));
  write("amount-title", found.paid > 0 ? texts.facts.paid : texts.facts.toPay);
  for (const [fact, text] of [
    ["quantity", lines > 0 ? undefined : found.quantity && number.format(found.quantity)],
    ["amount", state === "over" && !found.paid ? undefined : costs(found)],
    ["when", at && moment.format(at)],
    ["until", state === "held" ? when(found.pay_by, found.now ?? Date.now() / 1_000) : undefined],
  ]) {
    write(fact, text ?? "");
    part(fact).parentElement.hidden = text === undefined;
  }
}

async function look() {
  clearTimeout(timer);
  let found = await lookUp(order);
  if (OPEN.includes(found?.state)) found = { ...found, ...(await lookUp(order, "holds")) }; // with its place, and the store's clock
  if (found === null) {
    show("away", undefined, kept?.at);
    again(pauseMs);
    pauseMs *= 2;
  } else if (found.gone) {
    show("gone", undefined, kept?.at);
  } else {
    const state = stateOf(found);
    show(state, found, found.sold_at * 1_000);
    pauseMs = FIRST_PAUSE_MS;
    if (OPEN.includes(state)) again(HELD_PAUSE_MS);
  }
}

function again(pause) {
  clearTimeout(timer);
  if (pause <= LAST_PAUSE_MS && !document.hidden) timer = setTimeout(look, pause * (0.75 + Math.random() / 2));
}

begin();
document.title = `${texts.order} ${short} · ${shopTitle}`;
write("title", texts.order);
write("item", sku === "" ? texts.noOrder : nameOf(sku));
for (const fact of FACTS) if (texts.facts[fact]) write(`${fact}-title`, texts.facts[fact]);
write("number", short);
write("whole", order);
part("back").hidden = sku === "";
if (order !== "") part("copy").append(copyButton(order, texts.copyOrder(short)));
showPicture();
show("looking", undefined, kept?.at);
part("shop").hidden = false;
look();
document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (document.hidden || !["away", ...OPEN].includes(part("shop").dataset.state)) return;
  pauseMs = FIRST_PAUSE_MS;
  look();
});
