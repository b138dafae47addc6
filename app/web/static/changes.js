// What operators have changed lately: who, when, what.

import { keyed, make, part, write } from "./dom.js";
import { number } from "./figure.js";
import { written } from "./money.js";
import { toTheDoor } from "./session.js";
import { both as texts } from "./overview_texts.js";

const EVERY_MS = 5_000;
const PATIENCE_MS = 20_000;
const SHOWN = 30;
const AMOUNTS = ["price", "paid", "given_back", "owed"];
const TIMES = ["starts_at", "ends_at"];
const NEVER = [...TIMES, "limit_per_buyer"]; // of these 0 is none
const clock = new Intl.DateTimeFormat(texts.locale, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

function value(name, it, facts) {
  if (it === undefined || it === null || it === "") return texts.none;
  if (name === "state") return texts.states[it] ?? it;
  if (AMOUNTS.includes(name)) return written(it, facts.currency, texts.locale);
  if (it === 0 && NEVER.includes(name)) return texts.none;
  if (TIMES.includes(name)) return clock.format(it * 1_000);
  return typeof it === "number" ? number(it) : String(it);
}

/** Facts with the sums in other currencies beside the others. */
function flat({ other_currencies: others = {}, ...own }) {
  const sums = Object.entries(others).flatMap(([currency, of]) => Object.entries(of).map(([name, it]) => [`${name} ${currency}`, written(it, currency, texts.locale)]));
  return { ...own, ...Object.fromEntries(sums) };
}

function difference(change) {
  const [before, after] = [change.before, change.after].map(flat);
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])].filter((name) => !["currency", "order"].includes(name) && before[name] !== after[name]);
  const said = (name) => [before, after].map((facts) => value(name, facts[name], facts));
  const words = ([was, is]) => (was === texts.none ? is : `${was} → ${is}`);
  return names.map((name) => `${texts.fields[name.split(" ")[0]] ?? name} ${words(said(name))}`).join(texts.comma);
}

const lines = keyed(
  part("log"),
  ({ at, sku, what }) => `${at} ${sku} ${what}`,
  () => make("li", "", make("time", ""), make("strong", ""), make("span", "words"), make("span", "small")),
  (made, change) => {
    const [time, what, words, by] = made.children;
    write(time, clock.format(change.at * 1_000));
    time.dateTime = new Date(change.at * 1_000).toISOString();
    write(what, `${change.after.order ?? change.sku} · ${texts.whats[change.what] ?? change.what}`);
    write(words, difference(change));
    write(by, change.by ? texts.by(change.by) : "");
  },
);

/** Show the last changes, and look for new ones as long as the page is seen. */
export async function followChanges() {
  if (!document.hidden) {
    try {
      const answer = await fetch(`/log?limit=${SHOWN}`, { signal: AbortSignal.timeout(PATIENCE_MS) });
      if (answer.status === 401) return toTheDoor();
      if (answer.ok) {
        const found = await answer.json();
        part("no-changes").hidden = found.length > 0;
        lines(found);
      }
    } catch {
      // it is tried again
    }
  }
  setTimeout(followChanges, EVERY_MS);
}
