// The page before anything is shown in it: its words in the reader's language.

import { texts } from "./control_texts.js";

/** Write the words that never change. Those of elements with `data-label` are for people who listen. */
export function furnish(sku) {
  document.documentElement.lang = texts.language;
  document.title = sku === "default" ? texts.title : `${sku} · ${texts.title}`;
  for (const element of document.querySelectorAll("[data-text]")) element.textContent = texts.words[element.dataset.text];
  for (const element of document.querySelectorAll("[data-label]")) {
    element.setAttribute("aria-label", texts.words[element.dataset.label]);
  }
  const wished = new URLSearchParams(location.search).get("lang");
  const item = document.getElementById("sku");
  if (item === null) return;
  item.value = sku;
  document.getElementById("lang").value = wished ?? "";
  document.getElementById("lang").disabled = wished === null;
}
