// The orders of an item that this browser keeps, newest first, and which of them the service still knows.

import { browser } from "./keep.js";
import { skuOf } from "./order_id.js";
import { behind } from "./press.js";

const MOST = 50;
const KNOWN_MS = 60_000; // how long an answer about an order is valid
const GONE_MS = 3_600_000; // an order that is gone seldom comes back
const AGAIN_MS = 15_000; // when no answer came; doubled each time,
const AGAIN_MAX_MS = 480_000; // and after this no more until the page has a reason to
const SPREAD_MS = 3_000; // thousands of pages hear of a new sale at once
const PATIENCE_MS = 10_000;

/** The address of an order's page. The language goes along, and the buyer's token, if the shop in front has given one. */
export function addressOf(order) {
  return addressWith("/shop/order", { id: order });
}

/** The same for another device, or for somebody else: nobody is sent a buyer's token. */
export const linkOf = (order) => Object.assign(new URL(addressOf(order), location), { hash: "" }).href;

/** The address of the shop: its list, if it has one, or its item. */
export const homeOf = () => addressWith("/", {});

/** The address of an item's shop; with a hold the page goes on with that. */
export function shopOf(sku, hold = null) {
  const address = addressWith("/", sku === "default" ? {} : { sku });
  return hold === null ? address : `${address}${address.includes("#") ? "&" : "#"}hold=${encodeURIComponent(hold)}`;
}

function addressWith(path, fields) {
  const language = new URLSearchParams(location.search).get("lang");
  const query = new URLSearchParams(language === null ? fields : { ...fields, lang: language });
  return `${path}${query.size > 0 ? "?" : ""}${query}${behind()}`;
}

/** Ask for an order, or for a hold. Resolves with it, with `{ gone: true }` if there is none, or with null: not known now. */
export async function lookUp(order, what = "orders") {
  if (skuOf(order) === "") return { gone: true };
  try {
    const answer = await fetch(`/${what}/${encodeURIComponent(order)}`, {
      cache: "no-store",
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    const said = await answer.json();
    if (answer.ok) return said;
    return ["urn:seckill:http-404", "urn:seckill:invalid-request"].includes(said.type) ? { gone: true } : null;
  } catch {
    return null;
  }
}

/** The lines of a basket; none of an order of one item, which says all by itself. */
export const linesOf = ({ items = [] }) => (items.length > 1 ? items.filter(({ quantity }) => quantity > 0) : []);

/** How many units of an item an order has; without an item, of all. */
export function unitsOf({ items = [], quantity }, sku = null) {
  const found = items.filter((line) => sku === null || line.sku === sku);
  return found.length === 0 ? quantity : found.reduce((sum, line) => sum + line.quantity, 0);
}

/** The kept orders of an item; `onChange` is called when there is something new of them. */
export function ordersOf(sku, onChange) {
  const name = `orders.${sku}`;
  let checking = false;
  let wanted = false; // a check of all of them, asked for meanwhile
  let againMs = AGAIN_MS;
  let timer;

  /**
   * `{ order, at, seen, gone, state, quantity, by }`: its number, when it was made, when it was last asked about, how it stood and how many
   * units it had, and its buyer.
   */
  const all = () => browser.get(name) ?? [];

  function write(orders) {
    browser.set(name, orders.slice(0, MOST));
    onChange();
  }

  function add(order, by, quantity, state = null) {
    const at = all().find((one) => one.order === order)?.at ?? Date.now();
    write([{ order, at, seen: Date.now(), gone: false, state, quantity, by }, ...all().filter((one) => one.order !== order)]);
  }

  /** Have this be the item's sale: another one than before has forgotten all orders. */
  function belongTo(sale) {
    const kept = browser.get(`sale.${sku}`);
    if (sale === null || kept === sale) return;
    browser.set(`sale.${sku}`, sale);
    if (all().length > 0) setTimeout(() => check(true), SPREAD_MS * Math.random());
  }

  /** Ask the service about the orders that nothing was heard of lately, or about all. */
  async function check(each = false) {
    wanted ||= checking && each;
    if (checking) return;
    checking = true;
    for (const { order, seen = 0, gone } of all()) {
      if (!each && Math.abs(Date.now() - seen) < (gone ? GONE_MS : KNOWN_MS)) continue;
      const found = await lookUp(order);
      if (found === null) {
        clearTimeout(timer);
        if (againMs <= AGAIN_MAX_MS) timer = setTimeout(() => check(each), againMs);
        againMs *= 2;
        break;
      }
      againMs = AGAIN_MS;
      const now = { gone: found.gone === true, seen: Date.now(), state: found.state ?? null };
      write(all().map((one) => (one.order === order ? { ...one, ...now, quantity: unitsOf(found, sku) ?? one.quantity } : one)));
    }
    checking = false;
    if (!wanted) return;
    wanted = false;
    check(true);
  }

  addEventListener("storage", onChange); // another tab has bought
  return { all, add, check, belongTo };
}
