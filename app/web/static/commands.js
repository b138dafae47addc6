// The buttons: the sale's pause and end, restock, leave; and in a rehearsal: rush, pause of the holder. The outcome of a
// press is said beside it.

import { texts } from "./control_texts.js";
import { part, write } from "./dom.js";
import { number, seconds } from "./figure.js";
import { command, leave } from "./session.js";

const BEYOND_LEASE_S = 3; // so long a paused holder stands still after its lease: time to see what happens

const RUSH_S = 20; // beyond the time over which its buyers come

let seen = 0; // when the last picture was
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
function wire(form, send, other = null) {
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

async function rush(sku) {
  const wish = { buyers: part("buyers").valueAsNumber, over_s: part("over").valueAsNumber || 0 };
  const { answer, problem } = await command("POST", `/control/rush?sku=${encodeURIComponent(sku)}`, wish);
  if (problem !== undefined) return { problem };
  const since = seen;
  const there = (events) => events.filter(({ kind, at }) => kind === "rush" && at > since).length >= answer.instances.length;
  const over = ({ at, events }) => there(events) || at > since + wish.over_s + RUSH_S;
  return { over, answer: texts.rushed(number(wish.buyers), answer.instances.join(texts.and)) };
}

async function restock(sku) {
  const change = { stock: part("units").valueAsNumber, new_sale: part("new-sale").checked };
  let { answer, problem, said } = await command("PUT", address(sku), change);
  if (said?.type === "urn:seckill:has-orders") {
    const { title, words, yes } = texts.newSale;
    if (!(await confirmed(title, words(number(said.orders)), yes))) return { answer: texts.nothingDone };
    ({ answer, problem } = await command("PUT", address(sku), { ...change, forget_orders: said.orders }));
  }
  if (answer) part("new-sale").checked = false;
  const over = (picture) => picture.level !== null && picture.at > since + 1.5 && picture.level.stock !== answer.stock;
  const since = seen;
  return { problem, over: answer && over, answer: answer && texts.restocked(number(answer.stock)) };
}

const address = (sku) => `/stock?sku=${encodeURIComponent(sku)}`;

/** Change the item's own terms; `done(item)` says in words what became of it. */
async function agree(sku, terms, done) {
  const { answer, problem } = await command("PUT", address(sku), terms);
  return { problem, answer: answer && done(answer) };
}

async function end(sku) {
  const { title, words, yes } = texts.endSale;
  if (!(await confirmed(title, words, yes))) return { answer: texts.nothingDone };
  return agree(sku, { ends_at: seen }, () => texts.saleStates.ended); // by the service's clock
}

function confirmed(title, words, yes) {
  const dialog = part("confirm");
  write(part("confirm-title"), title);
  write(part("confirm-words"), words);
  write(part("confirm-yes"), yes);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

async function pause(sku) {
  const wish = { for_s: part("pause-for").valueAsNumber };
  const { answer, problem } = await command("POST", `/control/pause?sku=${encodeURIComponent(sku)}`, wish);
  const since = seen;
  const over = ({ events, instances }) =>
    events.some(({ kind, instance, at }) => kind === "paused" && instance === answer.instance && at > since) &&
    instances.every(({ paused_s }) => paused_s === 0);
  return { problem, over: answer && over, answer: answer && texts.pausing(answer.instance, seconds(answer.for_s)) };
}

/** Make the buttons work, for this item. */
export function wireCommands(sku) {
  part("pause-text").value = texts.pausedText;
  wire(part("sale"), () => agree(sku, { paused: part("pause-text").value }, ({ paused }) => texts.saleStates.paused(paused)));
  wire(part("sale"), () => agree(sku, { paused: null }, () => texts.saleStates.resumed), part("resume-sale"));
  wire(part("sale"), () => end(sku), part("end-sale"));
  wire(part("restock"), () => restock(sku));
  wire(part("rush"), () => rush(sku));
  wire(part("pause"), () => pause(sku));
  part("send-rush").addEventListener("click", () => part("rush").requestSubmit());
  part("leave").addEventListener("click", leave);
}

/** Show the buttons as they would act now. */
export function showCommands(picture) {
  seen = picture.at;
  for (const id of ["rush", "pause"]) part(id).hidden = !picture.rehearsal;
  showSale(picture);
  for (const [id, over] of until) if (over(picture)) tell(id, "", "");
  if (part("pause-for").value === "") part("pause-for").value = Math.ceil(picture.lock.ttl_s) + BEYOND_LEASE_S;
  part("nobody-buys").hidden = !picture.instances.some(({ pausing, waiting }) => pausing && waiting === 0);
}

/** Whether the sale is on, and what can be done about it. */
function showSale({ level, at }) {
  part("sale").hidden = level === null;
  if (level === null) return;
  const [early, over] = [level.starts_at !== null && at < level.starts_at, level.ends_at !== null && at >= level.ends_at];
  const { before, ended, paused, on } = texts.saleStates;
  write(part("sale-state"), over ? ended : level.paused ? paused(level.paused) : early ? before : on);
  part("sale-state").dataset.kind = over || level.paused ? "off" : "on";
  part("pause-sale").hidden = part("pause-text").parentElement.hidden = level.paused !== "";
  part("resume-sale").hidden = level.paused === "";
  part("end-sale").hidden = over || early;
}
