// The page before anything is shown in it: its words in the reader's language, and the way to others.

import { texts } from "./control_texts.js";
import { make } from "./dom.js";
import { go, wireWays } from "./ways.js";

const EDGE_PX = 8;

/** Write the words that never change. The words of elements with `data-label` are for people who listen. */
export function furnish(sku) {
  document.documentElement.lang = texts.language;
  document.title = sku === "default" || sku === "" ? texts.title : `${sku} · ${texts.title}`;
  for (const element of document.querySelectorAll("[data-text]")) element.textContent = texts.words[element.dataset.text];
  for (const element of document.querySelectorAll("[data-label]")) {
    element.setAttribute("aria-label", texts.words[element.dataset.label]);
  }
}

/** Make the head of the page work. */
export function wireRoom(sku) {
  const field = document.getElementById("sku");
  wireWays();
  offer(field, sku, []);
  fill(field, sku);
  field.addEventListener("focus", () => fill(field, sku));
  // A key changes the choice from item to item: one goes there with Enter.
  let byKey = false;
  field.addEventListener("pointerdown", () => (byKey = false));
  field.addEventListener("keydown", (event) => {
    byKey = event.key !== "Enter";
    if (byKey || field.value === sku) return;
    event.preventDefault();
    go({ sku: field.value });
  });
  field.addEventListener("blur", () => {
    byKey = false;
    field.value = sku;
  });
  field.addEventListener("change", () => byKey || go({ sku: field.value }));
}

/** The items to choose from; this one is among them, and first is the way to all. */
function offer(field, sku, items) {
  const names = [...new Set([...(sku ? [sku] : []), ...items])].sort();
  field.replaceChildren(new Option(texts.words.allItems, ""), ...names.map((name) => new Option(name, name)));
  field.value = sku;
}

async function fill(field, sku) {
  try {
    const answer = await fetch("/control/items");
    if (!answer.ok) return;
    const items = await answer.json();
    if (items.some((name) => ![...field.options].some(({ value }) => value === name))) offer(field, sku, items);
  } catch {
    // it stays as it is, and is tried again
  }
}

/** A question mark that explains a word, when it is pressed. */
export function explain(within = document) {
  for (const element of within.querySelectorAll("[data-explain]")) {
    const word = element.dataset.explain;
    const id = `about-${word}`;
    const button = make("button", "explain", "?");
    button.type = "button";
    button.setAttribute("aria-label", texts.whatIs(texts.terms[word]));
    button.setAttribute("popovertarget", id);
    const about = make("div", "about", make("p", "headline", texts.terms[word]), make("p", "", texts.explained[word]));
    about.id = id;
    about.addEventListener("toggle", ({ newState }) => newState === "open" && stand(about, button));
    about.popover = "auto";
    if (element.tagName === "H2") element.after(button);
    else element.append(button);
    document.body.append(about);
  }
}

/** Have an explanation stand below its question mark; where there is no room, beside it or above it. Its arrow is at it. */
function stand(about, button) {
  const [from, box] = [button.getBoundingClientRect(), about.getBoundingClientRect()];
  const middle = { x: from.left + from.width / 2, y: from.top + from.height / 2 };
  const within = (place, size, room) => Math.max(EDGE_PX, Math.min(place, room - size - EDGE_PX));
  const below = from.bottom + box.height + 2 * EDGE_PX <= innerHeight;
  const beside = !below && from.right + box.width + 2 * EDGE_PX <= innerWidth;
  const left = beside ? from.right + EDGE_PX : within(middle.x - 2.5 * EDGE_PX, box.width, innerWidth);
  const top = beside ? within(middle.y - 2.5 * EDGE_PX, box.height, innerHeight) : below ? from.bottom + EDGE_PX : from.top - EDGE_PX - box.height;
  about.dataset.side = beside ? "beside" : below ? "below" : "above";
  about.style.left = `${left}px`;
  about.style.top = `${top}px`;
  about.style.setProperty("--at", `${beside ? middle.y - top : middle.x - left}px`);
}
