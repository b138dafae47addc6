// The buttons: the sale's pause and end, and restock. The outcome of a press is said beside it.

import { texts } from "./control_texts.js";
import { confirmed } from "./dialog.js";
import { part, write } from "./dom.js";
import { number } from "./figure.js";
import { askPause } from "./pause_text.js";
import { pauseText } from "./sale.js";
import { command } from "./session.js";

let seen = 0; // when the last picture was
let last = null; // the last picture
const until = new Map(); // by the id of what was said: whether a picture says that it is not so any more

function tell(id, kind, text) {
  part(id).dataset.kind = kind;
  write(part(id), text);
  until.delete(id);
}

/** Take back what was said when `over(picture)`. */
function tellUntil(id, over) {
  until.set(id, over);
}

/** Have a form, or another button in it, send its command, one at a time, and say what became of it. */
export function wire(form, send, other = null) {
  const [button, said] = [other ?? form.querySelector("button[type=submit]"), form.querySelector("output").id];
  (other ?? form).addEventListener(other ? "click" : "submit", async (event) => {
    event.preventDefault();
    if (button.getAttribute("aria-disabled") === "true") return;
    button.setAttribute("aria-disabled", "true"); // not disabled: the keyboard's focus stays here
    tell(said, "waiting", texts.oneMoment);
    const { answer, problem, over } = await send();
    button.removeAttribute("aria-disabled");
    if (problem !== undefined) tell(said, "problem", problem);
    else tell(said, "done", answer);
    if (over) tellUntil(said, over);
  });
}

let unanswered = null; // the level at a restock of which nobody knows whether it was done

/** A restock; after one that was not answered the stock must be what it was then, or units would be added twice. */
async function restock(sku) {
  const change = { stock: part("units").valueAsNumber, new_sale: part("new-sale").checked };
  const tag = last?.level ? `"${last.level.stock}-${last.level.lucky}"` : undefined;
  const match = unanswered ?? undefined;
  let { answer, problem, said } = await command("PUT", address(sku), change, { match });
  if (said?.type === "urn:seckill:has-orders") {
    offerExport(sku);
    const { title, words, yes } = texts.newSale;
    const wanted = await confirmed({ title: title(sku), words: words(sku, number(said.orders)), yes });
    part("confirm-export").hidden = true;
    if (!wanted) return { answer: texts.nothingDone };
    ({ answer, problem, said } = await command("PUT", address(sku), { ...change, forget_orders: said.orders }, { match }));
  }
  if (match && said?.type === "urn:seckill:stock-not-as-expected") problem = texts.restockedMeanwhile(number(last.level.stock));
  unanswered = said || answer ? null : (match ?? tag ?? null);
  if (answer) part("new-sale").checked = false;
  const over = (picture) => picture.level !== null && picture.at > since + 1.5 && picture.level.stock !== answer.stock;
  const since = seen;
  return { problem, over: answer && over, answer: answer && texts.restocked[saleState(answer, seen)](number(answer.stock)) };
}

/** The orders that a new sale would forget, as files. */
function offerExport(sku) {
  for (const format of ["csv", "jsonl"]) part(`confirm-${format}`).href = `/orders/export?format=${format}&sku=${encodeURIComponent(sku)}`;
  part("confirm-export").hidden = false;
}

const address = (sku) => `/stock?sku=${encodeURIComponent(sku)}`;

/** Change the item's own terms; `done(item)` says in words what became of it. */
async function agree(sku, terms, done) {
  const { answer, problem } = await command("PUT", address(sku), terms);
  return { problem, answer: answer && done(answer) };
}

async function pauseSale(sku) {
  const terms = await askPause(texts.pauseWords(sku));
  if (terms === null) return { answer: texts.nothingDone };
  return agree(sku, terms, (item) => texts.saleStates.paused(pauseText(item)));
}

async function end(sku) {
  if (!(await confirmed(texts.endSale))) return { answer: texts.nothingDone };
  return agree(sku, { ends_at: seen }, () => texts.saleStates.ended); // by the service's clock
}

/** The way back from an end: as everywhere; where that has ended, too, without an end. */
async function reopen(sku) {
  const done = await agree(sku, { ends_at: null }, (item) => saleState(item, seen));
  if (done.answer === "ended") return agree(sku, { ends_at: 0 }, () => texts.saleStates.reopened);
  return { ...done, answer: done.answer && texts.saleStates.reopened };
}

/** Make the buttons work, for this item. */
export function wireCommands(sku) {
  wire(part("sale"), () => pauseSale(sku));
  wire(part("sale"), () => agree(sku, { paused: null }, () => texts.saleStates.resumed), part("resume-sale"));
  wire(part("sale"), () => end(sku), part("end-sale"));
  wire(part("sale"), () => reopen(sku), part("reopen-sale"));
  wire(part("restock"), () => restock(sku));
}

/** Show the buttons as they would act now. */
export function showCommands(picture) {
  seen = picture.at;
  last = picture;
  showSale(picture);
  for (const [id, over] of until) if (over(picture)) tell(id, "", "");
}

/** Whether the sale is on, and what can be done about it. */
function showSale({ level, at }) {
  part("sale").hidden = level === null;
  if (level === null) return;
  const [state, paused] = [saleState(level, at), level.paused !== ""];
  write(part("sale-state"), state === "paused" ? texts.saleStates.paused(pauseText(level)) : texts.saleStates[state]);
  part("sale-state").dataset.kind = state === "ended" || paused ? "off" : "on";
  part("pause-sale").hidden = paused || state === "ended";
  part("resume-sale").hidden = !paused;
  part("reopen-sale").hidden = state !== "ended";
  part("end-sale").hidden = state === "ended" || (level.starts_at !== null && at < level.starts_at);
}

/** How a sale stands. */
export function saleState({ starts_at, ends_at, paused }, at) {
  if (ends_at !== null && at >= ends_at) return "ended";
  if (paused) return "paused";
  return starts_at !== null && at < starts_at ? "before" : "on";
}
