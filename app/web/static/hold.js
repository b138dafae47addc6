// A hold: units that are this buyer's until they are paid, or the time to pay is over. The service says which.

import { browser } from "./keep.js";
import { Clock } from "./level.js";
import { owedOf } from "./money.js";
import { skuOf } from "./order_id.js";
import { buyerName, knownBuyer, takeBehind } from "./press.js";

const PATIENCE_MS = 15_000;
const LOOK_MS = 10_000; // while nothing is expected
const PAYING_MS = 2_000; // while a payment is, or an end
const AWAITED_S = 180; // a payment may still be on its way for so long after the end
const LATE_MS = 30_000; // while one may come all the same
const OPEN = ["held", "waiting"];
const SLOWEST_MS = 60_000; // while nobody answers
const OLD_S = 3_600; // a hold that ended so long ago is no news

/**
 * How a hold stands for its buyer at a moment of the service's clock: "none", "in_line", "held", "paying", "late", "paid", ...
 *
 * After a buyer went to pay, nobody here knows what was charged: a hold that has run out is "awaited" for some minutes, and then "unpaid".
 */
export function kindOf(view, now) {
  if (!view || view.state === "gone") return "none";
  const { state, extended, pay_by, payments = [] } = view;
  const owing = payments.filter((one) => owedOf(one).length > 0);
  if (state === "held") return now >= pay_by ? "late" : payments.some(({ waits }) => waits) ? "mismatch" : extended ? "paying" : "held";
  if (state === "confirmed") return owing.some((one) => one.state !== "counts") ? "paid_twice" : "paid";
  if (owing.length > 0) return "refund_due";
  if (state === "waiting") return "in_line";
  if (state === "cancelled" && (pay_by ?? null) === null) return "left"; // it never came to be held
  return state === "expired" && extended ? (now < pay_by + AWAITED_S ? "awaited" : "unpaid") : state;
}

/** The pause before the next look at a hold, in milliseconds; null: there is nothing more to learn. */
export function pauseOf(view, now) {
  if (view === null) return PAYING_MS;
  const { state, extended, pay_by } = view;
  if (state === "waiting") return LOOK_MS;
  const left = pay_by - now;
  if (state === "held" && left > -AWAITED_S) return extended || left <= 0 ? PAYING_MS : Math.min(LOOK_MS, 1_000 * left);
  if (state === "held") return left < -OLD_S ? null : LATE_MS; // its end is late
  if (!["expired", "cancelled"].includes(state) || !extended || left < -OLD_S) return null;
  return left < -AWAITED_S ? LATE_MS : state === "expired" ? PAYING_MS : LOOK_MS;
}

/** The way back to this page from where it is paid; a browser that keeps nothing learns from it which hold that was. */
export const backTo = (id) => `${location.origin}${location.pathname}${location.search}#hold=${encodeURIComponent(id)}`;

/** The hold with which somebody has come back, if it is one of these items. */
function broughtBack(skus) {
  const found = takeBehind("hold");
  return found !== null && skus.includes(skuOf(found)) ? found : null;
}

/**
 * The hold of an item that this browser keeps for the buyer who is here, for all its tabs; another buyer may have used it, too.
 *
 * `goesWith`: other items of its baskets, at which its order may stand. `onChange` is called when something new is known, and `onPaid`
 * with each order that is paid, however long ago.
 */
export function holdOf(sku, { goesWith = [], onChange, onPaid }) {
  const clock = new Clock(); // the store's: the one of the stock is the instance's
  const name = () => `hold.${sku}.${knownBuyer() ?? ""}`;
  let view = null;
  let failed = 0; // looks, one after the other
  let timer;

  const brought = broughtBack([sku, ...goesWith]);
  if (brought !== null && brought !== browser.get(name())?.id && !stood()) {
    buyerName(); // a guest who has paid, or waits elsewhere, gets a name
    browser.set(name(), { id: brought });
  }

  const id = () => browser.get(name())?.id ?? null;
  const now = () => clock.now ?? view?.now;

  /** Keep what decides whether another hold may be begun, as the page may be loaded again where the service does not answer. */
  function remember(mine, { state, extended, pay_by }) {
    const before = browser.get(name());
    const waited = before?.id === mine && (before.state === "waiting" || before.waited) ? true : undefined;
    const kept = { id: mine, state, extended, pay_by, waited };
    if (JSON.stringify(kept) !== JSON.stringify(before)) browser.set(name(), kept); // tells other tabs
  }

  /** It was held, or in line, or a payment was perhaps on its way, when this browser last heard of it. */
  function stood() {
    const { id, state, extended, pay_by } = browser.get(name()) ?? {};
    return OPEN.includes(state) || (id !== undefined && state === undefined) || (state === "expired" && extended && pay_by > Date.now() / 1_000 - OLD_S);
  }

  function hear(said) {
    view = said;
    remember(id(), view);
    schedule();
    onChange();
  }

  function schedule() {
    clearTimeout(timer);
    const pause = id() === null ? null : pauseOf(view, now());
    if (pause === null) return;
    const longer = Math.min(pause * 2 ** Math.min(failed, 9), Math.max(pause, SLOWEST_MS));
    const look = () => (document.hidden && view?.state !== "waiting") || ask(); // one that is hidden asks when it is seen, or for its turn
    timer = setTimeout(look, longer * (1 + Math.random() / 8));
  }

  /** Look, or "extend" or "cancel". Resolves with the answer, or with null: none came. */
  async function ask(verb) {
    const mine = id();
    if (mine === null) return null;
    clearTimeout(timer);
    const sent = performance.now();
    failed += 1; // until it has not
    try {
      const answer = await fetch(`/holds/${encodeURIComponent(mine)}${verb ? `/${verb}` : ""}`, {
        method: verb ? "POST" : "GET",
        cache: "no-store",
        signal: AbortSignal.timeout(PATIENCE_MS),
      });
      const said = await answer.json();
      const lost = said.outcome === "not_found" || ["urn:seckill:http-404", "urn:seckill:invalid-request"].includes(said.type);
      if (!answer.ok && !lost) return null;
      failed = 0;
      if (mine !== id()) return null; // another tab has a newer one
      if (answer.ok) clock.hear(said.now, sent, performance.now());
      if (said.state === "confirmed") onPaid(mine);
      const old = browser.get(name())?.state !== "waiting" && (said.pay_by ?? 0) < said.now - OLD_S; // how waiting ended is news, however late
      const ended = !OPEN.includes(said.state) && !said.payments?.some((one) => owedOf(one).length > 0) && old;
      hear(lost || (view === null && ended) ? { state: "gone" } : said);
      return said;
    } catch {
      return null;
    } finally {
      schedule();
    }
  }

  /** The page slept, perhaps. */
  function askAnew() {
    clock.doubt();
    ask();
  }

  addEventListener("storage", ({ key }) => key === `seckill.${name()}` && ask());
  addEventListener("pageshow", ({ persisted }) => persisted && askAnew()); // back from the provider's page
  document.addEventListener("visibilitychange", () => document.hidden || askAnew());

  return {
    ask,
    id,
    get view() {
      return view;
    },
    /** By the clock that ends it. */
    get now() {
      return now();
    },
    get kind() {
      if (view === null && stood()) return "asking";
      const kind = kindOf(view, now());
      return kind === "held" && browser.get(name())?.waited ? "offered" : kind;
    },
    /** A new one, as the service has answered. */
    keep(said) {
      remember(said.id, said);
      const received = performance.now();
      clock.hear(said.now, received, received);
      clock.doubt(); // nobody knows how long it was under way
      hear(said);
    },
  };
}
