// The shop: shows the level as level.js hears it, the outcome of a press, and what is held for this buyer.

import { backTo, holdOf } from "./hold.js";
import { basketOf } from "./basket.js";
import { follow } from "./level.js";
import { shorten } from "./order_id.js";
import { addressOf, homeOf, linesOf, linkOf, ordersOf, unitsOf } from "./orders.js";
import { beforeOf, begin, copyButton, goesWith, hasList, moment, money, most, nameOf, number, part, payAt, placeOf, shopTitle, showLines, showPicture, write } from "./page.js";
import { buyerName, forget, knownBuyer, press, unanswered } from "./press.js";
import { countdown, opening, phaseOf, remarkOf, when, wordsOf } from "./sale.js";
import { texts } from "./texts.js";

const REST_MS = 1_000; // after an outcome, before a press can be the next one
const LEAVE_MS = 5_000; // for the provider's page; by then another app has opened, or none has
const KNOWN_PHASES = ["before", "open", "sold_out", "all_held", "ended", "paused"];
const TO_PAY = ["held", "offered", "paying", "mismatch", "late"]; // a hold's kinds while it is one
const NUMBERED = ["in_line", "paid", "paid_twice", "refund_due", "unpaid"]; // that are told with the order's number
const HOLDS = ["held", "already_held", "waiting", "already_waiting"]; // outcomes with an order that the page follows
const NOT_BOUGHT = ["expired", "cancelled"]; // how an order stands that was held, and is none
const OVER = ["not_started", "sold_out", "limit_reached", "paused"]; // outdated when the button opens again
const CLOSED = ["sold_out", "all_held", "ended", "paused", "missing"]; // other items may be there

const sku = new URLSearchParams(location.search).get("sku") ?? "default";

let level = null;
let missing = false;
let phase = null;
let connection = null;
let spoken = null; // the order that is shown below the button
let listed = null; // the orders that are shown
let price = null; // of a unit, as people write it
let units = 1; // that a press is for
let standing = "none"; // how the hold stood
let pressed = false;
let leaving = false; // for the provider's page
let resting = false;
let selling = false; // to this buyer
let fullAt = null; // the limit that this buyer has reached, as the service said
let timer;

// -- the page ---------------------------------------------------------------------------------------------------------

function show() {
  const before = phase;
  phase = missing ? "missing" : phaseOf(level, shelf.clock.now);
  document.body.dataset.phase = phase;
  showLevel();
  showHold();
  showHours();
  showQuantity();
  showButton();
  if (phase !== before && KNOWN_PHASES.includes(before)) {
    const back = { sold_out: "again", all_held: "again", paused: "resumed" }[before];
    write("news", texts.news[phase === "open" && back ? back : phase]);
  }
}

function showLevel() {
  const total = level === null ? null : (level.initial ?? level.stock + level.held + level.lucky);
  price = (level?.price ?? null) === null ? null : money(level.price, level.currency);
  const nothing = missing && unanswered(sku) === null;
  part("sale").hidden = nothing;
  part("absent").hidden = !nothing;
  write("absent", nothing ? texts.mayCome : "");
  write("item", missing ? texts.noSuchItem : nameOf(sku));
  write("price", missing ? "" : (price ?? ""));
  write("limit", level?.limit_per_buyer ? texts.limit(number.format(level.limit_per_buyer)) : "");
  write("leading", level === null ? "" : texts.leading);
  write("left", level === null ? "–" : number.format(level.stock));
  write("of", total === null ? "" : texts.ofTotal(number.format(total)));
  part("bar").style.transform = `scaleX(${total ? Math.min(1, level.stock / total) : 0})`;
}

/** What has become of the hold, if that has changed. */
function showHold() {
  const { kind, view } = hold;
  const was = standing;
  standing = document.body.dataset.hold = kind;
  document.title = [kind === "offered" && texts.line.turn, part("item").textContent, shopTitle].filter(Boolean).join(" · ");
  if (kind === was) return;
  if (kind === "late") hold.ask(); // what is on this page is not the end: the service says that
  if (!Object.hasOwn(texts.holds, kind)) tell("none", [""]);
  else if (["held", "offered"].includes(kind)) tell(kind, texts.holds[kind](number.format(unitsOf(view))));
  else if (kind === "left" && phase === "ended") tell(kind, texts.holds.lineOver);
  else tell(kind, texts.holds[kind], NUMBERED.includes(kind) ? view.id : undefined);
}

function showHours() {
  clearTimeout(timer);
  const held = TO_PAY.includes(standing);
  const until = held ? hold.view.pay_by : phase === "before" ? level.starts_at : phase === "open" ? level.ends_at : null;
  const left = until === null ? null : Math.max(0, until - (held ? hold.now : shelf.clock.now));
  const inLine = isInLine();
  write("phase", held ? texts.payWithin[standing] : inLine ? placeOf(hold.view) : (texts.phases[phase === "open" && until !== null ? "closing" : phase] ?? ""));
  showLines(held ? hold.view : {}, sku);
  const what = () => (linesOf(hold.view).length > 0 ? [] : [nameOf(sku), texts.units(number.format(hold.view.quantity))]);
  const of = () => [...what(), toPay(), texts.payUntil(when(until, hold.now))].filter(Boolean);
  if (held) write("moment", of().join(" · "));
  else if (inLine && phase !== "paused") write("moment", beforeOf(hold.view, hold.now));
  else write("moment", until === null ? remarkOf(phase, level, shelf.clock.now) : when(until, shelf.clock.now));
  part("countdown").hidden = left === null;
  write("countdown", left === null ? "" : countdown(Math.ceil(left)));
  // Again when the second that is shown is over.
  if (left !== null) timer = setTimeout(show, 1_000 * (left % 1 || 1));
}

/** This buyer's orders, as far as this browser knows; another buyer may have used it, too. */
function kept() {
  const name = knownBuyer();
  return orders.all().filter(({ by = name, state }) => by === name && !NOT_BOUGHT.includes(state));
}

/** Those that count for the limit. */
const own = () => kept().filter(({ gone, state }) => !gone && state !== "refunded");

/** Units that this buyer may still have, as far as this browser knows. */
function room() {
  const limit = level?.limit_per_buyer;
  if (!limit) return Infinity;
  return fullAt === limit ? 0 : Math.max(0, limit - own().reduce((sum, { quantity = 1 }) => sum + quantity, 0));
}

/** Whether this buyer has had all that one may have. */
const isFull = () => room() === 0;

/** Whether this buyer waits in line, which ends with the sale: before its end is heard of, too. */
const isInLine = () => standing === "in_line" && phase !== "ended";

/** How many units one press may be for. */
const choice = () => (canWait() ? 1 : Math.max(1, Math.min(most, room(), level?.stock ?? 1)));

function showQuantity() {
  units = Math.min(units, choice());
  const open = ["before", "open"].includes(phase) && !TO_PAY.includes(standing) && !isInLine() && !elsewhere();
  part("quantity").hidden = !open || choice() === 1;
  basket.show(open && holding() && !canWait(), level?.currency);
  write("units", number.format(units));
  part("fewer").setAttribute("aria-disabled", String(isAsking() || units === 1));
  part("more").setAttribute("aria-disabled", String(isAsking() || units === choice()));
}

/** Whether a press is on its way, or may have been: it has its number of units. */
const isAsking = () => pressed || unanswered(sku) !== null;

function choose(change) {
  if (isAsking()) return;
  units = Math.max(1, Math.min(choice(), units + change));
  show();
}

// aria-disabled, not disabled: the keyboard's focus stays on the button.
function showButton() {
  const lost = unanswered(sku) !== null;
  const before = selling;
  const held = TO_PAY.includes(standing);
  const inLine = isInLine();
  selling = phase === "open" && !isFull() && !elsewhere();
  const offers = !inLine && (selling || (canWait() && !isFull()));
  const waits = pressed || resting || standing === "asking" || (standing === "awaited" && !lost);
  part("buy").setAttribute("aria-disabled", String(waits || !(held ? standing !== "late" : offers || lost)));
  part("buy").classList.toggle("again", !pressed && !lost && !held && own().length > 0);
  write("buy", buttonText(lost));
  part("others").hidden = !hasList || held || !CLOSED.includes(phase);
  part("cancel").hidden = !held && !inLine;
  write("cancel", inLine ? texts.buttons.leave : texts.buttons.cancel);
  part("cancel").setAttribute("aria-disabled", String(pressed));
  if (selling && !before && OVER.includes(part("outcome").dataset.kind)) tell("none", [""]);
  if (part("outcome").dataset.kind === "none") write("detail", hintOf(offers));
}

/** What a press does; `offers`: whether there can be one. */
function hintOf(offers) {
  if (elsewhere()) return texts.hintElsewhere;
  if (!offers) return "";
  return canWait() ? texts.hintWait : holding() ? texts.hintHold : texts.hint;
}

/** The button's words: what a press would do now, or why there is none. */
function buttonText(lost) {
  const { buttons } = texts;
  if (pressed) return buttons.pressed;
  if (lost) return buttons.unanswered;
  if (standing === "asking" || standing === "awaited") return buttons.unknown;
  if (TO_PAY.includes(standing)) return standing === "late" ? buttons.late : buttons.pay(toPay());
  if (isInLine()) return buttons.in_line;
  if (phase === "before") return opening(level, shelf.clock.now);
  if (phase !== "open" && !canWait()) return buttons[phase] ?? "";
  if (elsewhere()) return buttons.elsewhere;
  if (isFull()) return buttons.full(number.format(level.limit_per_buyer));
  if (canWait()) return buttons.wait;
  if (standing === "expired" || standing === "unpaid") return buttons.again;
  const sum = price === null ? null : money(level.price * units + basket.sum, level.currency);
  if (basket.lines.length > 0) return buttons.basket(sum);
  if (units > 1) return buttons.several(number.format(units), sum);
  return own().length > 0 ? buttons.more(sum) : buttons.open(sum);
}

function tell(kind, [headline, detail = ""], order) {
  part("outcome").dataset.kind = kind;
  spoken = order;
  write("headline", headline);
  write("detail", detail);
  part("order").replaceChildren(...(order ? [linkTo(order)] : []));
  part("copy").replaceChildren(...(order ? [copyOf(order, kind === "in_line")] : []));
}

// -- orders -----------------------------------------------------------------------------------------------------------

const short = (order) => shorten(order, kept().map((one) => one.order));

/** A button that copies an order's number; of a place in line its address, which opens it on another device. */
function copyOf(order, address) {
  return address ? copyButton(linkOf(order), texts.copyPlace) : copyButton(order, texts.copyOrder(short(order)));
}

function linkTo(order) {
  const link = document.createElement("a");
  link.href = addressOf(order);
  link.textContent = short(order);
  return link;
}

function showOrders() {
  const shown = kept();
  const now = JSON.stringify(shown.map(({ order, at, gone, state, quantity }) => [order, at, gone, state, quantity]));
  if (now === listed) return; // a link that has the focus keeps it
  listed = now;
  if (shown.some(({ order, gone }) => gone && order === spoken)) tell("none", [""]);
  part("orders").hidden = shown.length === 0;
  part("orders-list").replaceChildren(
    ...shown.map(({ order, at, gone, state, quantity }) => {
      const row = document.createElement("li");
      const time = document.createElement("time");
      time.dateTime = new Date(at).toISOString();
      time.textContent = [quantity && texts.units(number.format(quantity)), moment.format(at)].filter(Boolean).join(" · ");
      row.append(linkTo(order), time);
      if (gone || state === "refunded") {
        const mark = document.createElement("p");
        mark.textContent = gone ? texts.gone : texts.holds.refunded[0];
        row.append(mark);
      }
      return row;
    }),
  );
}

// -- the button -------------------------------------------------------------------------------------------------------

/** Whether a press holds a unit that is paid then: the item has a price, and there is a page where to pay it. */
const holding = () => payAt !== "" && price !== null;

/** Whether a press gets in line: whoever only holds gets none while others hold all units, or wait for them. */
const canWait = () => phase === "all_held" && holding();

/** Whether a press can't get this item: it has a price, and only the shop that has this page in front of it takes money. */
const elsewhere = () => payAt === "" && price !== null;

function toPay() {
  const { to_pay: amount = null, currency } = hold.view;
  return amount === null ? null : money(amount, currency);
}

/** Go to the provider's page, with the second, longer window. */
async function pay() {
  pressed = true;
  show();
  const said = await hold.ask("extend");
  pressed = false;
  if (said === null) tell("problem", texts.outcomes.noAnswer);
  else if (said.state === "held") {
    const address = new URL(payAt);
    address.searchParams.set("hold", said.id);
    address.searchParams.set("back", backTo(said.id));
    pressed = leaving = true;
    location.assign(address);
    setTimeout(comeBack, LEAVE_MS);
  }
  show();
}

async function giveBack() {
  pressed = true;
  show();
  if ((await hold.ask("cancel")) === null) tell("problem", texts.outcomes.noAnswer);
  pressed = false;
  show();
}

/** Send a press again that has no answer, if it would still buy what the buyer saw. */
function goOn() {
  const lost = pressed || level === null ? null : unanswered(sku, level);
  if (lost === "fresh") buy();
  if (lost === "over") {
    forget(sku);
    tell("over", texts.outcomes.over);
    show();
  }
}

/** Whether the press that has no answer was of an earlier sale. */
const isOver = () => level !== null && unanswered(sku, level) === "over";

async function buy() {
  if (isOver()) return goOn(); // it would be another purchase, at another price
  pressed = true;
  tell("waiting", [""]);
  show();
  const items = basket.lines.length > 0 ? [{ sku, quantity: units }, ...basket.lines] : undefined;
  const wish = { quantity: units, items, holds: holding(), wait: canWait() || undefined, sale: level?.sale, price: level?.price };
  const { outcome, order, replayed, problem, ...held } = await press(sku, wish, (...tries) => tell("waiting", texts.retrying(...tries)), isOver);
  pressed = false;
  const holds = held.id !== undefined && HOLDS.includes(outcome); // by this press, or by another of this buyer
  if (holds) {
    const last = hold.view;
    if (last?.extended && last.id !== held.id) orders.add(last.id, buyerName(), unitsOf(last, sku), last.state); // its payment may still come
    standing = "none";
    hold.keep({ outcome, ...held });
  }
  if (order) orders.add(order, buyerName(), held.quantity);
  const { line = null } = held; // of a basket: the item that can't be had
  if (outcome === "limit_reached" && units === 1 && (line ?? sku) === sku) fullAt = level?.limit_per_buyer ?? null;
  if (outcome === "sold" || holds) {
    units = 1;
    basket.empty();
  }
  if (problem && outcome === "unknown") tell("unknown", [texts.outcomes.unknown[0], texts.unheard[problem.type] ?? texts.unheard.other]);
  else if (problem) tell("problem", [...texts.outcomes.problem, wordsOf(problem)]);
  else if (line !== null) tell(outcome, texts.refused(nameOf(line, sku), texts.outcomes[outcome][0]));
  else if (!holds) tell(outcome, texts.outcomes[wordOf(outcome, replayed)], order);
  if (outcome === "not_started") shelf.clock.doubt();
  resting = true;
  setTimeout(() => {
    resting = false;
    showButton();
  }, REST_MS);
  show();
  if (!shelf.isLive() || ["not_started", "hold_required"].includes(outcome)) shelf.look();
  if (line !== null) basket.look();
}

/** Which words an outcome has: the service's own name of it, or one that says more. */
function wordOf(outcome, replayed) {
  if (outcome === "sold" && replayed) return "replayed";
  if (["sold_out", "limit_reached"].includes(outcome) && units > 1) return "too_many";
  return outcome === "sold_out" && level?.held > 0 ? (holding() ? "can_wait" : "all_held") : outcome;
}

for (const [id, change] of [["fewer", -1], ["more", 1]]) part(id).addEventListener("click", () => choose(change));
part("buy").addEventListener("click", (event) => {
  const second = event.detail > 1; // of a double click
  if (second || part("buy").getAttribute("aria-disabled") !== "false") return;
  if (unanswered(sku) === null && TO_PAY.includes(standing)) pay();
  else buy();
});
part("cancel").addEventListener("click", () => part("cancel").getAttribute("aria-disabled") === "false" && giveBack());
function comeBack() {
  if (!leaving) return;
  pressed = leaving = false; // from the provider's page, or from an app that has opened instead
  show();
}
addEventListener("pageshow", comeBack);
document.addEventListener("visibilitychange", () => document.hidden || comeBack());
part("buy").addEventListener("keydown", (event) => {
  if (event.repeat) event.preventDefault(); // a key that is held down presses once
});

// -- from the start ---------------------------------------------------------------------------------------------------

begin();
write("title", texts.title);
write("orders-title", texts.orders);
write("others", texts.others);
part("others").href = homeOf();
part("quantity").setAttribute("aria-label", texts.facts.quantity);
part("fewer").setAttribute("aria-label", texts.fewer);
part("more").setAttribute("aria-label", texts.more);
write("back", texts.toControl);
part("back").hidden = !new URLSearchParams(location.search).has("back"); // for an operator who came from there
part("back").href = `/control${location.search}`;
showPicture();
const orders = ordersOf(sku, () => {
  showOrders();
  show();
});
const query = `?sku=${encodeURIComponent(sku)}`;
const shelf = follow({ path: `/stock${query}`, live: `/stock/live${query}` }, {
  isOver: (heard, now) => phaseOf(heard, now) === "ended",
  startOf: (heard) => heard.starts_at,
  onLevel: (heard) => {
    const first = level === null;
    const anew = !first && heard.sale !== level.sale;
    if (heard.sale !== level?.sale) fullAt = null;
    level = heard;
    missing = false;
    orders.belongTo(heard.sale);
    show();
    if (first || (anew && isOver())) goOn();
  },
  onMissing: () => {
    level = null;
    missing = true;
    show();
  },
  onConnection: (state) => {
    const back = connection === "lost" && state !== "lost";
    connection = state;
    part("connection").dataset.state = state;
    write("connection", texts.connection[state]);
    if (!back) return;
    orders.check();
    hold.ask();
    goOn();
  },
});
const basket = basketOf(sku, { isBusy: isAsking, onChange: show });
const hold = holdOf(sku, {
  goesWith,
  onChange: show,
  onPaid: (order) => own().some((one) => one.order === order) || orders.add(order, buyerName(), hold.view && unitsOf(hold.view, sku)),
});
tell("none", [""]);
show();
showOrders();
part("shop").hidden = false;
orders.check();
hold.ask();
if (unanswered(sku) !== null) tell("unknown", texts.outcomes.unknown);
