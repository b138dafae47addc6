// The catalogue: what the shop sells, each with how its sale stands and the way to its own page.

import { follow } from "./level.js";
import { begin, money, number, part, shopTitle, write } from "./page.js";
import { behind } from "./press.js";
import { countdown, opening, phaseOf, remarkOf, when } from "./sale.js";
import { texts } from "./texts.js";

const SOON_S = 86_400; // an opening is counted down from so long before

const told = JSON.parse(document.querySelector("meta[name=item]").content);
const cards = new Map(); // by sku: what of the card changes

let levels = new Map(); // by sku
let reached = false; // the service has said which items are there
let timer;

/** The item's own page; a buyer's name in the address is kept. */
function addressOf(sku) {
  const query = new URLSearchParams(location.search);
  query.set("sku", sku);
  return `/?${query}${behind()}`;
}

function make(tag, className, ...content) {
  const element = document.createElement(tag);
  element.className = className;
  element.append(...content);
  return element;
}

/** What stands where others have a picture. */
function blank(name) {
  const made = make("span", "thumb blank", [...name[texts.words]][0] ?? "");
  made.ariaHidden = "true";
  return made;
}

function pictureOf(address, name) {
  const picture = make("img", "thumb");
  picture.alt = "";
  picture.width = picture.height = 480;
  picture.addEventListener("error", () => picture.replaceWith(blank(name))); // an instance of another release may not have it
  picture.src = address;
  return picture;
}

function card([sku, { name, picture }]) {
  const [cost, state, remark, fill] = [make("strong", "cost"), make("strong", "standing"), make("span", "quiet"), make("span", "fill")];
  const link = make("a", "card", picture ? pictureOf(picture, name) : blank(name));
  link.append(make("span", "words", make("strong", "name", name[texts.words]), cost, make("span", "how", state, remark), make("span", "bar", fill)));
  link.href = addressOf(sku);
  cards.set(sku, { link, cost, state, remark, fill });
  return make("li", "", link);
}

/** How the sale of an item stands, in two texts. */
function standing(level, phase, now) {
  const { starts_at, ends_at, stock } = level;
  if (phase === "before") return [opening(level, now), starts_at - now < SOON_S ? texts.startsIn(countdown(Math.ceil(starts_at - now))) : ""];
  if (phase !== "open") return [texts.phases[phase], remarkOf(phase, level, now)];
  return [texts.left(number.format(stock)), ends_at === null ? "" : texts.until(when(ends_at, now))];
}

function show() {
  clearTimeout(timer);
  const now = shelf.clock.now;
  let counting = false;
  for (const [sku, { link, cost, state, remark, fill }] of cards) {
    const level = levels.get(sku);
    const phase = level ? phaseOf(level, now) : reached ? "missing" : "unknown";
    const total = level ? (level.initial ?? level.stock + level.held + level.lucky) : 0;
    const [first, second] = level ? standing(level, phase, now) : [reached ? texts.comesLater : "", ""];
    counting ||= [level?.starts_at, level?.ends_at].some((moment) => moment > now);
    link.dataset.phase = phase;
    for (const [element, text] of [
      [cost, level && level.price !== null ? money(level.price, level.currency) : ""],
      [state, first],
      [remark, second],
    ]) {
      if (element.textContent !== text) element.textContent = text;
    }
    fill.style.transform = `scaleX(${total ? Math.min(1, level.stock / total) : 0})`;
  }
  if (counting) timer = setTimeout(show, 1_000);
}

begin();
document.title = shopTitle;
write("title", texts.title);
write("back", texts.toControl);
part("back").hidden = !new URLSearchParams(location.search).has("back");
part("back").href = `/control${location.search}`;
part("items").classList.toggle("pictured", Object.values(told).some(({ picture }) => picture));
part("items").replaceChildren(...Object.entries(told).map(card));
const shelf = follow({ path: "/stock/list", live: "/stock/list/live" }, {
  isOver: ({ items }, now) => items.every((level) => phaseOf(level, now) === "ended"),
  startOf: ({ items }) => Math.min(...items.map(({ starts_at }) => (starts_at > shelf.clock.now ? starts_at : Infinity))),
  onLevel: ({ items }) => {
    levels = new Map(items.map((level) => [level.sku, level]));
    reached = true;
    show();
  },
  onConnection: (state) => {
    part("connection").dataset.state = state;
    write("connection", texts.connection[state]);
  },
});
show();
part("shop").hidden = false;
