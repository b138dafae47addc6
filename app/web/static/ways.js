// The head of an operator's page: the ways to the other pages, and the switches of language, colours and session.

import { texts } from "./control_texts.js";
import { make, part } from "./dom.js";
import { leave } from "./session.js";
import { nextTheme, theme } from "./theme.js";

const SIGNS = { auto: "\u25d0", light: "\u2600\ufe0e", dark: "\u263e\ufe0e" }; // half and half, a sun, a moon
const PLACES = { toRoom: "/control", toOrders: "/control/orders", toEvents: "/control/deliveries", toReconcile: "/control/reconcile" };

/** The rest of an address: the item and the language stay what they are. */
export function along(more = {}) {
  const [here, query] = [new URLSearchParams(location.search), new URLSearchParams()];
  for (const name of ["sku", "lang"]) if (here.get(name)) query.set(name, here.get(name));
  for (const [name, value] of Object.entries(more)) query.set(name, value);
  return query.size > 0 ? `?${query}` : "";
}

/** Go to this page with other words in its address. */
export function go(changes) {
  const address = new URL(location.href);
  for (const [name, value] of Object.entries(changes)) address.searchParams.set(name, value);
  location.assign(address);
}

function link(words, address) {
  const made = make("a", "", texts.words[words]);
  made.href = address;
  if (address.split("?")[0] === location.pathname) made.setAttribute("aria-current", "page");
  return made;
}

function button(id, words, act) {
  const made = make("button", "", words);
  made.type = "button";
  made.id = id;
  made.addEventListener("click", act);
  return made;
}

/** Fill the head in. */
export function wireWays() {
  const light = button("theme", "", () => {
    nextTheme();
    say();
  });
  const say = () => {
    light.textContent = SIGNS[theme()];
    light.title = texts.colours(texts.themes[theme()]);
    light.setAttribute("aria-label", light.title);
  };
  say();
  const places = Object.entries(PLACES).map(([words, path]) => link(words, path + along()));
  places.push(link("toShop", `/${along({ back: "" })}`));
  part("ways").replaceChildren(...places);
  const language = button("language", texts.words.otherLanguage, () => go({ lang: texts.otherLanguage }));
  part("switches").replaceChildren(language, light, button("leave", texts.words.leave, leave));
}
