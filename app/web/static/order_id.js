// The id of an order: its item, its number and its secret. No other module knows how it is written.

const MARK = "~";

/** The part that can't be guessed. */
export const secretOf = (id) => id.slice(id.lastIndexOf(MARK) + 1);

/** The item; "" if this is no id. */
export const skuOf = (id) => id.slice(0, Math.max(0, id.indexOf(MARK)));

/** The id without its secret. */
export const nameOf = (id) => id.slice(0, id.lastIndexOf(MARK));

/** The number in a name, without the item. */
export const numberOf = (name) => name.slice(name.indexOf(MARK) + 1);

const GROUP = 4; // characters of a short number

/** As much of an order's secret as distinguishes it from these others, two groups at least: the number that its buyer reads out. */
export function shorten(order, others = []) {
  const secret = secretOf(order);
  const rest = others.filter((other) => other !== order).map(secretOf);
  let length = 2 * GROUP;
  while (length < secret.length && rest.some((other) => other.startsWith(secret.slice(0, length)))) length += GROUP;
  return secret.slice(0, length).toUpperCase().match(/.{1,4}/gsu)?.join("-") ?? "";
}

/** What somebody has typed as a name: a number alone is one of this item, if there is one. */
export const named = (typed, sku) => (sku && !typed.includes(MARK) ? `${sku}${MARK}${typed}` : typed);
