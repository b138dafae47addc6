// The page's memory of the sale: the curves.

const KEPT_S = 120;
const RATE_OVER_S = 1.4; // reports come twice a second, and are looked at twice a second: over less it would flicker
const GAP_S = 6; // after a longer silence the curves have a hole

const samples = [];

/** Remember a picture. */
export function remember(picture) {
  const last = samples.at(-1);
  if (last && picture.at <= last.at) return; // of an instance whose clock is behind the one that we spoke to before
  if (last && picture.at - last.at > GAP_S) samples.push({ at: (last.at + picture.at) / 2, level: null, served: new Map(), hole: true });
  const sample = { at: picture.at, level: picture.level, served: new Map(), rates: new Map(), hole: false };
  for (const { instance, served } of picture.instances) sample.served.set(instance, served);
  samples.push(sample);
  const before = earlier(samples.length - 1);
  for (const [instance, served] of sample.served) {
    const servedBefore = before?.served.get(instance);
    if (servedBefore === undefined) continue;
    // An instance that has started anew counts from 0.
    const since = served >= servedBefore ? served - servedBefore : served;
    sample.rates.set(instance, since / (sample.at - before.at));
  }
  while (samples[0].at < picture.at - KEPT_S - GAP_S) samples.shift();
}

function earlier(place) {
  for (let before = place - 1; before >= 0 && !samples[before].hole; before -= 1) {
    if (samples[place].at - samples[before].at >= RATE_OVER_S || before === 0 || samples[before - 1].hole) return samples[before];
  }
  return null;
}

/** Remember the time before this page was opened. */
export function recall({ samples: before }) {
  if (samples.length > 0) return;
  for (const { at, stock, lucky, served: of, held } of before) {
    const instances = Object.entries(of).map(([instance, served]) => ({ instance, served }));
    remember({ at, level: { stock, lucky, held }, instances });
  }
}

/** The stock over time, as columns: moments, units with those that are held (if any ever are), and without. */
export function levels() {
  const holds = samples.some(({ level }) => level?.held > 0);
  const columns = [({ stock, held = 0 }) => (holds ? stock + held : null), ({ stock }) => stock];
  return [samples.map(({ at }) => at), ...columns.map((of) => samples.map(({ level }) => (level ? of(level) : null)))];
}

/** The instances that were seen lately. */
export function seen() {
  return [...new Set(samples.flatMap(({ served }) => [...served.keys()]))];
}

/** Buyers served per second over time, as columns: moments, and a column for each of these instances. */
export function rates(instances) {
  const columns = instances.map((instance) => samples.map((sample) => sample.rates?.get(instance) ?? null));
  return [samples.map(({ at }) => at), ...columns];
}

/** Buyers served per second now, by instance. */
export function ratesNow() {
  return samples.at(-1)?.rates ?? new Map();
}

/** From when to when curves are shown: the last two minutes, or since the page was opened. */
export function span() {
  const [first, last] = [samples.at(0), samples.at(-1)].map((sample) => sample?.at ?? Date.now() / 1_000);
  return [last - Math.min(KEPT_S, Math.max(20, last - first)), last];
}
