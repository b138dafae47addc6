// How the shop and an order's page write into the document, and how both describe the item and a place in its line.

import { written } from "./money.js";
import { homeOf, linesOf } from "./orders.js";
import { when } from "./sale.js";
import { texts } from "./texts.js";

const COPIED_MS = 2_000;

export const part = (id) => document.getElementById(id);

/** Write a text only if it has changed: else it would be announced and drawn again. */
export function write(id, text) {
  if (part(id).textContent !== text) part(id).textContent = text;
}

export const number = new Intl.NumberFormat(texts.locale);
export const moment = new Intl.DateTimeFormat(texts.locale, {
  month: "short",
  day: "numeric",
  hour: "numeric",
  minute: "2-digit",
});

// The service's description of the item came with the page.
const told = JSON.parse(document.querySelector("meta[name=item]").content);

/**
 * The shop: its name in each language, or null; whether it has a list of items; how many units a purchase may be of; and where it sends
 * a buyer to pay, empty if it sells at once.
 */
export const { name: shopName, list: hasList, most, pay: payAt } = JSON.parse(document.querySelector("meta[name=shop]").content);

/** The shop's name, in titles. */
export const shopTitle = shopName?.[texts.words] ?? texts.title;

/** Write what all pages have: the shop's name, as the way to its beginning, and the way to all items. */
export function begin() {
  document.documentElement.lang = texts.language;
  if (shopName) write("brand", shopName[texts.words]);
  part("home").href = homeOf();
  if (part("all") === null) return;
  write("all", texts.all);
  part("all").hidden = !hasList;
  part("all").href = homeOf();
}

/** An amount in the minor unit of its currency, as people write it. */
export const money = (amount, currency) => written(amount, currency, texts.locale);

/** The items that may be put in the basket with this one. */
export const goesWith = told.with ?? [];

/** The name of the page's item, or of another one beside it; one that is not in the catalogue is called by its sku. */
export function nameOf(sku, own = sku) {
  return (sku === own ? told.name : told.names?.[sku])?.[texts.words] ?? sku;
}

/** Write the lines of an order, if there are several: "2 × Spare bulb CN¥58.00"; `own`: the page's item. */
export function showLines(order, own) {
  const lines = linesOf(order).map(({ sku, quantity, price }) => [texts.lineOf(number.format(quantity), nameOf(sku, own)), price === null ? "" : money(price * quantity, order.currency)]);
  const now = JSON.stringify(lines);
  if (part("lines").dataset.shown === now) return;
  part("lines").dataset.shown = now;
  part("lines").hidden = lines.length === 0;
  part("lines").replaceChildren(
    ...lines.map((texts) => {
      const line = document.createElement("li");
      line.append(...texts.map((text) => Object.assign(document.createElement("span"), { textContent: text })));
      return line;
    }),
  );
}

/** The picture beside the name, which says what is on it. */
export function showPicture() {
  if (!told.picture) return;
  const picture = document.createElement("img");
  picture.alt = "";
  picture.width = picture.height = 480;
  picture.src = told.picture;
  const hide = (hidden) => document.body.classList.toggle("pictured", !hidden);
  picture.addEventListener("error", () => {
    picture.remove(); // an instance of another release may not have it
    hide(true);
  });
  part("picture").replaceChildren(picture);
  hide(false);
}

/** Which place in line an order has; one that is not known is not said. */
export const placeOf = ({ place }) => texts.line.place(place ? number.format(place.number) : null);

/** What is known of the units that may come back; which of them will, nobody knows. */
export function beforeOf({ place }, now) {
  if (!place) return "";
  const { held, first_ends_at: back } = place;
  return held > 0 ? texts.line.before(number.format(held), (back ?? null) === null || back <= now ? null : when(back, now)) : texts.line.none;
}

/** A button that copies a text; `label`: what that is, for those who don't see what is beside it. */
export function copyButton(text, label) {
  const copy = document.createElement("button");
  copy.type = "button";
  copy.className = "copy";
  copy.textContent = texts.copy;
  copy.setAttribute("aria-label", label);
  copy.addEventListener("click", async () => {
    if (!(await copyText(text))) return;
    copy.textContent = texts.copied;
    write("news", "");
    write("news", texts.news.copied);
    setTimeout(() => (copy.textContent = texts.copy), COPIED_MS);
  });
  return copy;
}

// The clipboard is there on HTTPS only; a selection can be copied anywhere. Resolves with whether it was.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const element = document.createElement("span");
    element.className = "unseen";
    element.textContent = text;
    document.body.append(element);
    getSelection().selectAllChildren(element);
    const copied = document.execCommand("copy");
    element.remove();
    return copied;
  }
}
