// Dialogs: what is about to be done, and whether it is wanted.

import { part, write } from "./dom.js";

/** Open a dialog of the page; resolves with whether it was closed by its "yes". */
export function asked(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

/** Ask the reader whether they want that. */
export function confirmed({ title, words, yes }) {
  write(part("confirm-title"), title);
  write(part("confirm-words"), words);
  write(part("confirm-yes"), yes);
  return asked(part("confirm"));
}
