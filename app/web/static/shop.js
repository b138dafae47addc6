// The shop: shows what level.js hears, and what became of a press.

import { browser } from "./keep.js";
import { follow } from "./level.js";
import { press, unanswered } from "./press.js";
import { texts } from "./texts.js";

const REST_MS = 1_000; // after an outcome, before a press can be the next one
const COPIED_MS = 2_000;
const ORDERS_MAX = 50;
const KNOWN_PHASES = ["before", "open", "sold_out", "ended"];

const sku = new URLSearchParams(location.search).get("sku") ?? "default";
const part = (id) => document.getElementById(id);
const number = new Intl.NumberFormat(texts.locale);
const moment = new Intl.DateTimeFormat(texts.locale, {
  month: "short",
  day: "numeric",
  hour: "numeric",
  minute: "2-digit",
});

let level = null;
let missing = false;
let phase = null;
let pressed = false;
let resting = false;
let timer;

// -- what is shown ----------------------------------------------------------------------------------------------------

// Nothing is written that is there already: that would be announced again, and drawn again.
function write(id, text) {
  if (part(id).textContent !== text) part(id).textContent = text;
}

function phaseNow() {
  if (missing) return "missing";
  if (level === null) return "unknown";
  const { now } = shelf.clock;
  if (level.starts_at !== null && now < level.starts_at) return "before";
  if (level.ends_at !== null && now >= level.ends_at) return "ended";
  return level.stock > 0 ? "open" : "sold_out";
}

function show() {
  const before = phase;
  phase = phaseNow();
  document.body.dataset.phase = phase;
  showLevel();
  showHours();
  showButton();
  if (phase !== before && KNOWN_PHASES.includes(before)) showChange(before);
}

function showChange(before) {
  write("news", texts.news[before === "sold_out" && phase === "open" ? "again" : phase]);
  // What was said of a press is no news any more when the button opens again.
  if (phase === "open" && ["not_started", "sold_out"].includes(part("outcome").dataset.kind)) tell("none", ["", texts.hint]);
}

function showLevel() {
  const total = level === null ? null : (level.initial ?? level.stock + level.lucky);
  write("item", missing ? texts.noSuchItem : sku === "default" ? texts.item : sku);
  document.title = `${part("item").textContent} · ${texts.title}`;
  write("left", level === null ? "–" : number.format(level.stock));
  part("left").style.setProperty("--letters", part("left").textContent.length);
  write("of", total === null ? "" : texts.ofTotal(number.format(total)));
  part("bar").style.transform = `scaleX(${total ? Math.min(1, level.stock / total) : 0})`;
}

function showHours() {
  clearTimeout(timer);
  const until = phase === "before" ? level.starts_at : phase === "open" ? level.ends_at : null;
  const left = until === null ? null : Math.max(0, until - shelf.clock.now);
  write("phase", texts.phases[phase === "open" && until !== null ? "closing" : phase]);
  write("moment", until === null ? (texts.remarks[phase] ?? "") : moment.format(until * 1_000));
  part("countdown").hidden = left === null;
  write("countdown", left === null ? "" : countdown(Math.ceil(left)));
  // Again when the second that is shown is over.
  if (left !== null) timer = setTimeout(show, 1_000 * (left % 1 || 1));
}

function countdown(seconds) {
  const [days, hours, minutes] = [86_400, 3_600, 60].map((unit) => Math.floor(seconds / unit));
  const digits = [hours % 24, minutes % 60, seconds % 60].map((value) => String(value).padStart(2, "0")).join(":");
  return days > 0 ? texts.days(days) + digits : digits;
}

// aria-disabled, not disabled: the keyboard's focus stays on the button.
function showButton() {
  const open = !pressed && !resting && (phase === "open" || unanswered(sku) !== null);
  part("buy").setAttribute("aria-disabled", String(!open));
  write("buy", texts.buttons[pressed ? "pressed" : unanswered(sku) ? "unanswered" : phase]);
}

function tell(kind, [headline, detail = ""], order) {
  part("outcome").dataset.kind = kind;
  write("headline", headline);
  write("detail", detail);
  const [link, copy] = order ? orderNumber(order) : [];
  part("order").replaceChildren(...(order ? [link] : []));
  part("copy").replaceChildren(...(order ? [copy] : []));
}

// -- orders -----------------------------------------------------------------------------------------------------------

function orderNumber(order) {
  const link = document.createElement("a");
  link.href = `/orders/${encodeURIComponent(order)}`;
  link.textContent = order;
  const copy = document.createElement("button");
  copy.type = "button";
  copy.className = "copy";
  copy.textContent = texts.copy;
  copy.setAttribute("aria-label", texts.copyOrder(order));
  copy.addEventListener("click", async () => {
    await copyText(link, order);
    copy.textContent = texts.copied;
    write("news", "");
    write("news", texts.news.copied);
    setTimeout(() => (copy.textContent = texts.copy), COPIED_MS);
  });
  return [link, copy];
}

// The clipboard is there on HTTPS only; what is selected can be copied anywhere.
async function copyText(element, text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    getSelection().selectAllChildren(element);
    document.execCommand("copy");
  }
}

function showOrders() {
  const orders = browser.get(`orders.${sku}`) ?? [];
  part("orders").hidden = orders.length === 0;
  part("orders-list").replaceChildren(
    ...orders.map(({ order, at }) => {
      const row = document.createElement("li");
      const when = document.createElement("time");
      when.dateTime = new Date(at).toISOString();
      when.textContent = moment.format(at);
      row.append(when, ...orderNumber(order));
      return row;
    }),
  );
}

function keepOrder(order) {
  const others = (browser.get(`orders.${sku}`) ?? []).filter((one) => one.order !== order);
  browser.set(`orders.${sku}`, [{ order, at: Date.now() }, ...others].slice(0, ORDERS_MAX));
  showOrders();
}

// -- the button -------------------------------------------------------------------------------------------------------

async function buy() {
  pressed = true;
  tell("waiting", [""]);
  show();
  const { outcome, order, replayed, problem } = await press(sku, (...tries) => tell("waiting", texts.retrying(...tries)));
  pressed = false;
  if (problem) tell("problem", [...texts.outcomes.problem, problem]);
  else tell(outcome, texts.outcomes[outcome === "sold" && replayed ? "replayed" : outcome], order);
  if (order) keepOrder(order);
  if (outcome === "not_started") shelf.clock.doubt();
  resting = true;
  setTimeout(() => {
    resting = false;
    showButton();
  }, REST_MS);
  show();
  if (!shelf.isLive() || outcome === "not_started") shelf.look();
}

part("buy").addEventListener("click", (event) => {
  const second = event.detail > 1; // of a double click
  if (!second && part("buy").getAttribute("aria-disabled") === "false") buy();
});
part("buy").addEventListener("keydown", (event) => {
  if (event.repeat) event.preventDefault(); // a key that is held down presses once
});

// -- from the start ---------------------------------------------------------------------------------------------------

document.documentElement.lang = texts.language;
write("title", texts.title);
write("orders-title", texts.orders);
tell("none", ["", texts.hint]);
const shelf = follow(sku, {
  onLevel: (heard) => {
    level = heard;
    missing = false;
    show();
  },
  onMissing: () => {
    level = null;
    missing = true;
    show();
  },
  onConnection: (state) => {
    part("connection").dataset.state = state;
    write("connection", texts.connection[state]);
  },
});
show();
showOrders();
part("shop").hidden = false;
if (unanswered(sku) === "fresh") buy();
else if (unanswered(sku) === "old") tell("unknown", texts.outcomes.unknown);
