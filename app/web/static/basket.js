// What goes with the item: how many units of each the buyer puts in the basket, which is held and paid as one.

import { follow } from "./level.js";
import { goesWith, money, most, nameOf, number, part, payAt } from "./page.js";
import { phaseOf } from "./sale.js";
import { texts } from "./texts.js";

/** One of them, with its row; `isBusy()`: whether nothing may be chosen now. */
function beside(sku, page, isBusy, onChange) {
  const row = part("beside-row").content.firstElementChild.cloneNode(true);
  const [name, cost, stands, quantity] = ["name", "cost", "stands", "quantity"].map((one) => row.querySelector(`.${one}`));
  const [fewer, more] = quantity.querySelectorAll("button");
  let level = null;
  let units = 0;

  const isOpen = () => level !== null && phaseOf(level, shelf.clock.now) === "open";

  /** How many units there may be, beside an item that costs `currency`. */
  const choice = (currency) => (isOpen() && level.price !== null && level.currency === currency ? Math.min(most, level.limit_per_buyer || most, level.stock) : 0);

  function show(currency) {
    const may = choice(currency);
    units = Math.min(units, may);
    row.hidden = level === null || level.price === null;
    if (row.hidden) return;
    cost.textContent = money(level.price, level.currency);
    stands.textContent = may > 0 ? "" : (texts.phases[phaseOf(level, shelf.clock.now)] ?? "");
    quantity.hidden = may === 0;
    quantity.querySelector("output").textContent = number.format(units);
    fewer.setAttribute("aria-disabled", String(isBusy() || units === 0));
    more.setAttribute("aria-disabled", String(isBusy() || units === may));
  }

  name.textContent = nameOf(sku, page);
  quantity.setAttribute("aria-label", `${texts.facts.quantity}: ${name.textContent}`);
  for (const [button, change, label] of [[fewer, -1, texts.fewer], [more, 1, texts.more]]) {
    button.setAttribute("aria-label", label);
    button.addEventListener("click", () => {
      if (button.getAttribute("aria-disabled") === "true") return;
      units += change;
      onChange();
    });
  }
  const query = `?sku=${encodeURIComponent(sku)}`;
  const hear = (said) => {
    level = said;
    onChange();
  };
  const shelf = follow({ path: `/stock${query}`, live: `/stock/live${query}` }, {
    isOver: (heard, now) => phaseOf(heard, now) === "ended",
    startOf: (heard) => heard.starts_at,
    onLevel: hear,
    onMissing: () => hear(null),
    onConnection: () => {}, // the page says that of its item
  });
  return {
    row,
    show,
    look: shelf.look,
    empty: () => (units = 0),
    get line() {
      return { sku, quantity: units };
    },
    get sum() {
      return units === 0 ? 0 : level.price * units;
    },
  };
}

/** The basket of an item's page. */
export function basketOf(page, { isBusy, onChange }) {
  const all = (payAt === "" ? [] : goesWith).map((sku) => beside(sku, page, isBusy, onChange));
  part("beside").append(...all.map(({ row }) => row));
  return {
    /** Show what may be chosen, or nothing, if there is nothing to choose now. */
    show(open, currency) {
      for (const one of all) open ? one.show(currency) : one.empty();
      part("beside").hidden = !open || all.every(({ row }) => row.hidden);
    },
    /** The lines beside the item's own. */
    get lines() {
      return all.map(({ line }) => line).filter(({ quantity }) => quantity > 0);
    },
    /** What they cost. */
    get sum() {
      return all.reduce((sum, one) => sum + one.sum, 0);
    },
    empty: () => all.forEach((one) => one.empty()),
    look: () => all.forEach((one) => one.look()),
  };
}
