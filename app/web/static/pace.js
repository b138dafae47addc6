// How fast each item is sold, from one look to the next, since the page was opened.

const KEPT_S = 600;
const OVER_S = 5; // over less it would flicker
const ALL = "";

const looks = []; // `{ at, sold: { sku: units } }`
const paces = new Map(); // by sku: `{ at, value }` in units per second

/** Remember how many units of each item were sold, at a moment. */
export function remember(at, levels) {
  if (looks.length > 0 && at <= looks.at(-1).at) return; // of an instance whose clock is behind
  const sold = Object.fromEntries(levels.filter(({ level }) => level !== null).map(({ sku, level }) => [sku, level.lucky]));
  looks.push({ at, sold });
  const before = looks.findLast((one) => one.at <= at - OVER_S) ?? looks[0];
  while (looks.length > 2 && looks[1].at < at - OVER_S) looks.shift();
  if (before.at === at) return;
  let all = 0;
  for (const [sku, units] of Object.entries(sold)) {
    const value = Math.max(0, units - (before.sold[sku] ?? units)) / (at - before.at); // a new sale begins with less
    all += value;
    keep(sku, at, value);
  }
  keep(ALL, at, all);
}

function keep(sku, at, value) {
  const kept = paces.get(sku) ?? [];
  kept.push({ at, value });
  while (kept[0].at < at - KEPT_S) kept.shift();
  paces.set(sku, kept);
}

/** The units per second of an item, or of all together, over the last ten minutes. */
export const paceOf = (sku = ALL) => paces.get(sku) ?? [];

/** How many seconds are drawn: since the first look, a minute at least. */
export function shown() {
  const all = paceOf();
  return all.length === 0 ? 60 : Math.min(KEPT_S, Math.max(60, all.at(-1).at - all[0].at));
}
