// The page before anything is shown in it: its words in the reader's language, and the way to others.

import { texts } from "./control_texts.js";
import { make } from "./dom.js";
import { nextTheme, theme } from "./theme.js";

/** Write the words that never change. The words of elements with `data-label` are for people who listen. */
export function furnish(sku) {
  document.documentElement.lang = texts.language;
  document.title = sku === "default" ? texts.title : `${sku} · ${texts.title}`;
  for (const element of document.querySelectorAll("[data-text]")) element.textContent = texts.words[element.dataset.text];
  for (const element of document.querySelectorAll("[data-label]")) {
    element.setAttribute("aria-label", texts.words[element.dataset.label]);
  }
}

function go(changes) {
  const address = new URL(location.href);
  for (const [name, value] of Object.entries(changes)) address.searchParams.set(name, value);
  location.assign(address);
}

/** Make the switches at the top work. */
export function wireRoom(sku) {
  const [list, field] = ["items", "sku"].map((id) => document.getElementById(id));
  const language = document.getElementById("language");
  const light = document.getElementById("theme");
  const shop = new URLSearchParams(location.search);
  shop.set("back", "");
  document.getElementById("to-shop").href = `/?${shop}`;
  language.addEventListener("click", () => go({ lang: texts.otherLanguage }));
  const say = () => (light.textContent = texts.themes[theme()]);
  light.addEventListener("click", () => {
    nextTheme();
    say();
  });
  say();
  field.value = sku;
  field.addEventListener("focus", () => {
    field.placeholder = field.value; // or only those items would be listed that are called like this one
    field.value = "";
    fill(list);
  });
  field.addEventListener("blur", () => (field.value ||= sku));
  field.addEventListener("input", ({ inputType }) => {
    const written = inputType && inputType !== "insertReplacementText"; // else it was chosen from the list
    if (!written && [...list.options].some(({ value }) => value === field.value) && field.value !== sku) go({ sku: field.value });
  });
  field.form.addEventListener("submit", (event) => {
    event.preventDefault();
    go({ sku: field.value || sku });
  });
}

async function fill(list) {
  try {
    const answer = await fetch("/control/items");
    if (answer.ok) list.replaceChildren(...(await answer.json()).map((name) => new Option(name, name)));
  } catch {
    // names can be written all the same
  }
}

/** A question mark that explains a word, when it is pressed. */
export function explain() {
  for (const element of document.querySelectorAll("[data-explain]")) {
    const word = element.dataset.explain;
    const id = `about-${word}`;
    const button = make("button", "explain", "?");
    button.type = "button";
    button.setAttribute("aria-label", texts.whatIs(texts.terms[word]));
    button.setAttribute("popovertarget", id);
    const about = make("div", "about", make("p", "headline", texts.terms[word]), make("p", "", texts.explained[word]));
    about.id = id;
    about.popover = "auto";
    if (element.tagName === "H2") element.after(button);
    else element.append(button);
    document.body.append(about);
  }
}
