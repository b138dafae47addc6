// A hold: units that are this buyer's until they are paid, or the time to pay is over. The service says which.

import { browser } from "./keep.js";

const PATIENCE_MS = 15_000;
const LOOK_MS = 10_000; // while nothing is expected
const PAYING_MS = 2_000; // while a payment is, or an end
const OLD_S = 3_600; // a hold that ended so long ago is no news

/** How a hold stands for its buyer at a moment of the service's clock: "none", "held", "paying", "late", "paid", ... */
export function kindOf(view, now) {
  if (!view || view.state === "gone") return "none";
  const { state, extended, pay_by, amount_mismatch, refunds_due = [] } = view;
  if (state === "held") return now >= pay_by ? "late" : amount_mismatch ? "mismatch" : extended ? "paying" : "held";
  if (state === "confirmed") return refunds_due.length > 0 ? "paid_twice" : "paid";
  return refunds_due.length > 0 ? "refund_due" : state;
}

/** The hold of an item that this browser keeps, for all its tabs; `onChange` is called when something new is known. */
export function holdOf(sku, clock, onChange) {
  const name = `hold.${sku}`;
  let view = null;
  let timer;

  const id = () => browser.get(name)?.id ?? null;

  function hear(said) {
    view = said;
    if (view.state !== browser.get(name).state) browser.set(name, { id: id(), state: view.state }); // tells other tabs
    schedule();
    onChange();
  }

  function schedule() {
    clearTimeout(timer);
    if (view?.state === "gone" || (view !== null && !view.extended && view.state !== "held") || id() === null) return;
    if (view !== null && ["confirmed", "refunded"].includes(view.state)) return;
    const left = view?.state === "held" ? 1_000 * (view.pay_by - (clock.now ?? view.now)) : 0;
    const pause = view === null || view.extended || left <= 0 ? PAYING_MS : Math.min(LOOK_MS, left);
    timer = setTimeout(() => (document.hidden ? schedule() : ask()), pause * (1 + Math.random() / 8));
  }

  /** Look, or "extend" or "cancel". Resolves with the answer, or with null: none came. */
  async function ask(verb) {
    const mine = id();
    if (mine === null) return null;
    clearTimeout(timer);
    const sent = performance.now();
    try {
      const answer = await fetch(`/holds/${encodeURIComponent(mine)}${verb ? `/${verb}` : ""}`, {
        method: verb ? "POST" : "GET",
        cache: "no-store",
        signal: AbortSignal.timeout(PATIENCE_MS),
      });
      const said = await answer.json();
      const lost = said.outcome === "not_found" || ["urn:seckill:http-404", "urn:seckill:invalid-request"].includes(said.type);
      if (!answer.ok && !lost) return null;
      if (mine !== id()) return null; // another tab has a newer one
      if (answer.ok) clock.hear(said.now, sent, performance.now());
      const ended = said.state !== "held" && said.pay_by < said.now - OLD_S;
      hear(lost || (view === null && ended) ? { state: "gone" } : said);
      return said;
    } catch {
      return null;
    } finally {
      schedule();
    }
  }

  addEventListener("storage", ({ key }) => key === `seckill.${name}` && ask());
  addEventListener("pageshow", ({ persisted }) => persisted && ask()); // back from the provider's page
  document.addEventListener("visibilitychange", () => document.hidden || ask());

  return {
    ask,
    id,
    get view() {
      return view;
    },
    get kind() {
      if (view === null && browser.get(name)?.state === "held") return "asking";
      return kindOf(view, clock.now ?? view?.now);
    },
    /** A new one, as the service has answered. */
    keep(said) {
      browser.set(name, { id: said.id, state: said.state });
      hear(said);
    },
  };
}
