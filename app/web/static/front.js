// The catalogue: what the shop sells, each with the way to its own page.

import { money, number, part, write } from "./page.js";
import { behind } from "./press.js";
import { texts } from "./texts.js";

const EVERY_MS = 5_000;
const PATIENCE_MS = 10_000;

const told = JSON.parse(document.querySelector("meta[name=item]").content);
const states = new Map(); // by sku: the elements that say what it costs, and how many are left

/** The item's own page; a buyer's name in the address is kept. */
function addressOf(sku) {
  const query = new URLSearchParams(location.search);
  query.set("sku", sku);
  return `/?${query}${behind()}`;
}

function card([sku, { name, picture }]) {
  const made = document.createElement("li");
  const link = document.createElement("a");
  link.className = "card";
  link.href = addressOf(sku);
  const image = document.createElement(picture ? "img" : "span");
  image.className = "thumb";
  if (picture) {
    image.alt = "";
    image.src = picture;
    image.addEventListener("error", () => (image.hidden = true)); // an instance of another release may not have it
  }
  const [title, cost, state] = ["strong", "span", "span"].map((tag) => document.createElement(tag));
  title.textContent = name[texts.words];
  state.className = "quiet";
  states.set(sku, { cost, state });
  const words = document.createElement("span");
  words.className = "words";
  words.append(title, cost, state);
  link.append(image, words);
  made.append(link);
  return made;
}

function stateOf({ stock, held, starts_at, ends_at, paused, now }) {
  if (starts_at !== null && now < starts_at) return texts.news.before;
  if (ends_at !== null && now >= ends_at) return texts.phases.ended;
  if (paused) return texts.phases.paused;
  return stock > 0 ? texts.left(number.format(stock)) : texts.phases[held > 0 ? "all_held" : "sold_out"];
}

async function look(sku) {
  try {
    const answer = await fetch(`/stock?sku=${encodeURIComponent(sku)}`, { signal: AbortSignal.timeout(PATIENCE_MS) });
    const { cost, state } = states.get(sku);
    if (answer.status === 404) state.textContent = texts.comesLater;
    if (!answer.ok) return;
    const level = await answer.json();
    state.textContent = stateOf(level);
    cost.textContent = level.price === null ? "" : money(level.price, level.currency);
  } catch {
    // it stays as it was
  }
}

async function lookAtAll() {
  if (!document.hidden) await Promise.all([...states.keys()].map(look));
  setTimeout(lookAtAll, EVERY_MS * (0.75 + Math.random() / 2)); // thousands of pages don't ask in step
}

document.documentElement.lang = texts.language;
document.title = texts.title;
write("title", texts.title);
write("back", texts.toControl);
part("back").hidden = !new URLSearchParams(location.search).has("back");
part("back").href = `/control${location.search}`;
part("items").replaceChildren(...Object.entries(told).map(card));
part("shop").hidden = false;
lookAtAll();
