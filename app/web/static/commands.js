// The buttons: the sale's pause and end, restock, leave; and in a rehearsal: the guided start, rush, pause of the holder.
// The outcome of a press is said beside it.

import { texts } from "./control_texts.js";
import { part, write } from "./dom.js";
import { number, seconds } from "./figure.js";
import { command, leave } from "./session.js";
import { beginStory, dropStory } from "./story.js";

const BEYOND_LEASE_S = 3; // so long a paused holder stands still after its lease: time to see what happens
const RUSH_S = 20; // beyond the time over which its buyers come
const SHOWN_BUYERS = 240; // those of the guided start: some come before the pause, and some after it
const SHOWN_S = { before: 2.5, after: 5 };

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

/** The guided start: buyers come, the holder is paused, and the story of its pause tells what happens. */
async function show(sku) {
  const { level, lock, instances } = last;
  if (level !== null && saleState(level, seen) !== "on") return { problem: texts.showNeedsSale };
  const forS = pauseFor(lock);
  const wish = { buyers: SHOWN_BUYERS, over_s: SHOWN_S.before + forS + SHOWN_S.after };
  const within = (path) => `/control/${path}?sku=${encodeURIComponent(sku)}`;
  if (level === null || level.stock < wish.buyers) {
    const { problem } = await command("PUT", address(sku), { stock: wish.buyers });
    if (problem !== undefined) return { problem };
  }
  beginStory(seen, { buyers: wish.buyers, instances: instances.filter(({ silent }) => !silent).map(({ instance }) => instance) });
  let { problem } = await command("POST", within("rush"), wish);
  if (problem === undefined) {
    await new Promise((resolve) => setTimeout(resolve, SHOWN_S.before * 1_000));
    ({ problem } = await command("POST", within("pause"), { for_s: forS }));
  }
  if (problem !== undefined) dropStory();
  return { problem, answer: "" };
}

const pauseFor = ({ ttl_s }) => Math.ceil(ttl_s) + BEYOND_LEASE_S;

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
  if (answer) beginStory(seen);
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
  wire(part("guide"), () => show(sku));
  wire(part("rush"), () => rush(sku));
  wire(part("pause"), () => pause(sku));
  part("send-rush").addEventListener("click", () => part("rush").requestSubmit());
  part("leave").addEventListener("click", leave);
}

/** Show the buttons as they would act now. */
export function showCommands(picture) {
  seen = picture.at;
  last = picture;
  part("rehearsal").hidden = !picture.rehearsal;
  part("guide").hidden = picture.lock.keeps_apart !== "all processes";
  write(part("guide-hint"), texts.showHint(picture.guarded));
  write(part("pause-hint"), texts.pauseHint(picture.guarded));
  showSale(picture);
  for (const [id, over] of until) if (over(picture)) tell(id, "", "");
  if (part("pause-for").value === "") part("pause-for").value = pauseFor(picture.lock);
  part("nobody-buys").hidden = !picture.instances.some(({ pausing, waiting }) => pausing && waiting === 0);
}

/** Whether the sale is on, and what can be done about it. */
function showSale({ level, at }) {
  part("sale").hidden = level === null;
  if (level === null) return;
  const [state, paused] = [saleState(level, at), level.paused !== ""];
  write(part("sale-state"), state === "paused" ? texts.saleStates.paused(level.paused) : texts.saleStates[state]);
  part("sale-state").dataset.kind = state === "ended" || paused ? "off" : "on";
  part("pause-sale").hidden = part("pause-text").parentElement.hidden = paused;
  part("resume-sale").hidden = !paused;
  part("end-sale").hidden = state === "ended" || (level.starts_at !== null && at < level.starts_at);
}

function saleState({ starts_at, ends_at, paused }, at) {
  if (ends_at !== null && at >= ends_at) return "ended";
  if (paused) return "paused";
  return starts_at !== null && at < starts_at ? "before" : "on";
}
