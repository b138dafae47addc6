// An item on the overview: its picture and name, how it stands, its units as a bar, its pace as a line, its money.

import { keyed, make, part, write } from "./dom.js";
import { about, number } from "./figure.js";
import { sums, written } from "./money.js";
import { paceOf, shown } from "./pace.js";
import { countdown, phaseOf, when } from "./sale.js";
import { draw, spark } from "./spark.js";
import { along } from "./ways.js";
import { both as texts } from "./overview_texts.js";

const SOON_S = 86_400; // an opening within a day is counted down

/** What an item is called, in the reader's language. */
export const called = ({ sku, name }) => name?.[texts.catalogue] ?? sku;

/** How an item stands: a word for the style sheets. The worst comes first. */
export function standing({ level, wrong }, at, pace) {
  if (wrong.length > 0) return "wrong";
  if (level === null) return "off";
  const phase = phaseOf(level, at);
  return phase === "open" && pace > 0 ? "selling" : phase;
}

function create(item) {
  const name = make("a", "", called(item));
  name.href = `/control${along({ sku: item.sku })}`;
  const line = make("p", "standing", make("span", "pill"), make("span", "price"));
  const head = make("div", "head", make("div", "titles", make("h3", "", name), line, make("p", "small")));
  if (item.picture) head.prepend(pictureOf(item.picture));
  const figures = ["stock", "held", "lucky"].map((curve) => {
    const made = make("div", "", make("dt", "", texts.figures[curve]), make("dd", ""));
    made.dataset.curve = curve;
    return made;
  });
  const bar = make("div", "bar", ...["lucky", "held"].map((curve) => {
    const made = make("span", "");
    made.dataset.curve = curve;
    return made;
  }));
  bar.setAttribute("role", "img");
  const pace = make("p", "pace", spark(), make("span", "small"));
  return make("li", "card thing", head, make("p", "told"), make("dl", "figures3", ...figures), bar, pace, make("p", "sums"));
}

function pictureOf(address) {
  const made = make("img", "");
  made.alt = "";
  made.width = made.height = 64;
  made.src = address;
  made.addEventListener("error", () => made.remove()); // an instance of another release may not have it
  return made;
}

function hours({ starts_at: start, ends_at: end }, at) {
  if (start !== null && at < start) return texts.opens(when(start, at));
  if (end !== null) return (at < end ? texts.until : texts.endedAt)(when(end, at));
  return "";
}

function said(kind, { level, wrong }, at) {
  if (kind === "wrong") return wrong.join(texts.comma);
  if (kind === "off") return texts.restockMakesIt;
  if (kind === "paused") return [...new Set([level.paused, ...Object.values(level.paused_texts ?? {})])].map(texts.quoted).join(" ");
  if (kind === "before" && level.starts_at - at < SOON_S) return texts.opensIn(countdown(Math.max(0, Math.floor(level.starts_at - at))));
  return "";
}

function fill(made, item) {
  const { sku, level, at, money } = item;
  const rates = paceOf(sku);
  const kind = standing(item, at, rates.at(-1)?.value ?? 0);
  made.dataset.kind = kind;
  const [head, told, figures, bar, pace, sum] = made.children;
  write(head.querySelector(".pill"), texts.kinds[kind]);
  write(head.querySelector(".price"), level === null || level.price === null ? "" : written(level.price, level.currency, texts.locale));
  write(head.querySelector(".small"), [called(item) === sku ? "" : sku, level === null ? "" : hours(level, at), level?.waiting > 0 && texts.inLine(number(level.waiting))].filter(Boolean).join(" · "));
  write(told, said(kind, item, at));
  figures.hidden = bar.hidden = level === null;
  pace.hidden = !rates.some(({ value }) => value > 0);
  write(sum, "");
  if (level === null) return;
  const total = level.initial ?? level.stock + level.held + level.lucky;
  [level.stock, level.held, level.lucky].forEach((units, place) => write(figures.children[place].lastElementChild, number(units)));
  figures.children[1].hidden = level.price === null && level.held === 0;
  bar.setAttribute("aria-label", texts.bar(number(level.stock), number(level.held), number(level.lucky), number(total)));
  [level.lucky, level.held].forEach((units, place) => (bar.children[place].style.width = `${total > 0 ? (100 * units) / total : 0}%`));
  draw(pace.firstElementChild, rates, at, shown());
  write(pace.lastElementChild, rates.length === 0 ? "" : texts.perSecond(about(rates.at(-1).value)));
  if (money) fillMoney(sum, sku, money);
}

function fillMoney(sum, sku, { money, to_ship, attention }) {
  write(sum, "");
  const paid = sums(money, "paid", texts.locale);
  if (paid) sum.append(make("span", "", texts.moneyIn(paid)));
  if (to_ship > 0) sum.append(make("span", "", texts.toShip(number(to_ship))));
  if (attention > 0) {
    const owed = make("a", "", texts.attention(attention, number(attention)));
    owed.href = `/control/orders${along({ sku, state: "attention" })}`;
    sum.append(owed);
  }
}

/** Shows items `{ sku, name, picture, level, wrong, at, money }`. */
export const things = keyed(part("items"), ({ sku }) => sku, create, fill);
