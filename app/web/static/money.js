// Amounts of money: whole numbers in the minor unit of their currency, written with its decimals.

// How many decimals a currency has is ISO 4217's to say, and not how the browser usually shows it: forints are shown
// without any, and have two. Those that don't have two, as in app/money.py:
const DECIMALS = {
  ...Object.fromEntries("BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF".split(" ").map((one) => [one, 0])),
  ...Object.fromEntries("BHD IQD JOD KWD LYD OMR TND".split(" ").map((one) => [one, 3])),
  ...Object.fromEntries("CLF UYW".split(" ").map((one) => [one, 4])),
};

/** An amount as people write it. One without a currency was set by an earlier release: nobody knows its unit. */
export function written(amount, currency, locale) {
  if (!currency) return String(amount);
  const digits = DECIMALS[currency] ?? 2;
  const style = { style: "currency", currency, currencyDisplay: "symbol" }; // not the narrow one: a yen is no yuan
  const writer = new Intl.NumberFormat(locale, { ...style, minimumFractionDigits: digits, maximumFractionDigits: digits });
  return writer.format(amount / 10 ** digits);
}

/** An amount that somebody has typed, in the minor unit of its currency; null if it is none. */
export function parsed(text, currency) {
  const digits = DECIMALS[currency] ?? 2;
  const [found, whole, rest = ""] = /^(\d+)(?:[.,](\d+))?$/.exec(text.trim()) ?? [null];
  return found === null || rest.length > digits ? null : Number(whole + rest.padEnd(digits, "0"));
}

/** The states of a refund that is still to be given. */
export const OWED = new Set(["due", "asked", "failed"]);

/** The refunds of a payment that are owed. */
export const owedOf = ({ refunds }) => refunds.filter(({ state }) => OWED.has(state));

/** The sums of orders by currency, as a report has them. */
export function addUp(orders) {
  const money = {};
  for (const order of orders) {
    for (const one of [order, ...order.other_currencies]) {
      const total = (money[one.currency ?? ""] ??= { paid: 0, given_back: 0, owed: 0, kept: 0 });
      for (const which of Object.keys(total)) total[which] += one[which];
    }
  }
  return money;
}

/** The sums of a report by currency, as one text: `{ EUR: { paid: 499 } }` and `paid` are "€4.99"; "" if there are none. */
export function sums(money, which, locale, between = " + ") {
  return Object.entries(money)
    .sort(([one], [other]) => (one < other ? -1 : 1))
    .filter(([, one]) => one[which] !== 0)
    .map(([currency, one]) => written(one[which], currency, locale))
    .join(between);
}
