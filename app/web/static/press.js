// A press of the button has one idempotency key, however often it must be sent until it is answered.

import { browser, tab } from "./keep.js";

const TRIES = 5;
const FIRST_PAUSE_MS = 1_000; // doubled from try to try
const PATIENCE_MS = 15_000; // for one answer, and for the longest pause
const FRESH_MS = 120_000;
const KEY_REUSED = "urn:seckill:key-reused"; // this press can never have an answer
const TOKEN = /^[\w-]+\.[\w-]+\.[\w-]*$/; // in a header no log of a proxy shows it

// crypto.randomUUID is there on HTTPS only.
function random(bytes) {
  return Array.from(crypto.getRandomValues(new Uint8Array(bytes)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Take a field from behind the page's address, where it was for this page only; null if it is not there. */
export function takeBehind(field) {
  const fields = new URLSearchParams(location.hash.slice(1));
  const found = fields.get(field);
  if (found === null) return null;
  fields.delete(field);
  history.replaceState(history.state, "", `${location.pathname}${location.search}${fields.size > 0 ? "#" : ""}${fields}`);
  return found;
}

/** The token that the shop in front has put behind the page's address: whoever is sent the address must not have it. */
function given() {
  const found = takeBehind("buyer");
  if (found) tab.set("given", found);
  return tab.get("given");
}

given(); // as soon as the page is there

/** The end of a link to another of these pages, so that it is the same buyer's in another tab, too. */
export function behind() {
  const found = given();
  return found ? `#buyer=${encodeURIComponent(found)}` : "";
}

/** The buyer's name, as this browser keeps it; or that token. */
function buyer() {
  const signed = given();
  if (signed) return signed;
  const known = browser.get("buyer");
  if (known) return known;
  const name = `guest-${random(6)}`;
  browser.set("buyer", name);
  return name;
}

/** The buyer's name as the service knows it: the one that is in the token. */
export const buyerName = () => nameIn(buyer());

/** The same; null for a guest who has no name yet, and is not given one. */
export function knownBuyer() {
  const known = given() ?? browser.get("buyer");
  return known === null ? null : nameIn(known);
}

function nameIn(said) {
  try {
    const claims = said.split(".")[1].replaceAll("-", "+").replaceAll("_", "/");
    return JSON.parse(atob(claims)).sub ?? said;
  } catch {
    return said;
  }
}

/** Where a press is kept: each buyer of this browser has their own. */
const slot = (sku, by) => `press.${sku}.${by ?? ""}`;

/**
 * The press that has no answer yet: "fresh", "old" (nobody waits for it any more, or the price is not what it was), "over" (another
 * sale has begun, in which it counts for nothing), or null. `sale` and `price`: of the item now, as far as they are known.
 */
export function unanswered(sku, { sale = null, price } = {}) {
  const press = tab.get(slot(sku, knownBuyer()));
  if (press === null) return null;
  if (press.sale && sale && press.sale !== sale) return "over";
  const dearer = press.price !== undefined && price !== undefined && press.price !== price;
  return Date.now() - press.at < FRESH_MS && !dearer ? "fresh" : "old";
}

/** Forget the press that has no answer. */
export const forget = (sku) => tab.remove(slot(sku, knownBuyer()));

/**
 * Buy units, or hold them. A press that has no answer yet is sent again, with its key; so is this one, a few times.
 *
 * `wish`: how many, or the lines of a basket, whether they are only held, whether the buyer gets in line for them, and the sale and the price that the buyer saw; a press that is sent again keeps its own.
 *
 * Resolves with the service's answer: `{ outcome, order, replayed }`, or that of a hold, or `{ problem }` with its type and status; or
 * with the outcome "too_often" (nothing was bought) or "unknown": then an earlier try may have counted, and the press keeps its key,
 * also if this one was refused for a `problem`. `onRetry` is called before each further try, with its
 * number and that of the last, and whether the last one was refused because of too many. `isOver`: whether another sale has begun,
 * in which the press would be another one; the outcome is "over" then.
 */
export async function press(sku, wish, onRetry, isOver = () => false) {
  const name = slot(sku, buyerName());
  const before = tab.get(name);
  const mine = { key: random(16), quantity: 1, holds: false, ...(before ?? wish), at: Date.now() }; // the same press means the same
  let unheard = before !== null; // a try may have counted, although its answer did not come
  tab.set(name, mine);
  for (let attempt = 1; ; attempt += 1) {
    const { answer, pauseMs, tooOften } = await send(sku, mine);
    if (answer) {
      if (unheard && answer.problem && answer.problem.type !== KEY_REUSED) return { outcome: "unknown", ...answer };
      tab.remove(name);
      return answer;
    }
    unheard ||= !tooOften;
    const wait = Math.max(pauseMs, FIRST_PAUSE_MS * 2 ** (attempt - 1)) * (1 + Math.random() / 4);
    if (attempt === TRIES || wait > PATIENCE_MS) {
      if (!unheard) tab.remove(name);
      return { outcome: unheard ? "unknown" : "too_often" };
    }
    onRetry(attempt + 1, TRIES, tooOften);
    await new Promise((resolve) => setTimeout(resolve, wait));
    if (isOver()) {
      tab.remove(name);
      return { outcome: "over" };
    }
  }
}

/** Send it once. No `answer` if nothing was decided, or that is not known; then the requested pause. */
async function send(sku, { key, quantity, items, holds, wait }) {
  try {
    const [name, headers] = [buyer(), { Accept: "application/json", "Idempotency-Key": key }];
    const query = new URLSearchParams({ sku, quantity });
    if (!holds && TOKEN.test(name)) headers.Authorization = `Bearer ${name}`;
    else query.set("buyer", name);
    const held = { headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify({ ...(items ? { items } : { sku, quantity }), buyer: name, wait }) };
    const answer = await fetch(holds ? "/holds" : `/stock/reduce?${query}`, {
      method: "POST",
      ...(holds ? held : { headers }),
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    if (answer.ok) return { answer: await answer.json() };
    if (answer.status >= 500 || answer.status === 408 || answer.status === 429) {
      const pauseMs = 1_000 * (Number(answer.headers.get("Retry-After")) || 0);
      return { pauseMs, tooOften: answer.status === 429 };
    }
    const said = await answer.json().catch(() => null); // it may be a proxy's answer, and not JSON
    return { answer: { problem: { type: String(said?.type), status: answer.status } } };
  } catch {
    return { pauseMs: 0, tooOften: false };
  }
}
