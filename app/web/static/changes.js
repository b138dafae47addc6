// What operators have changed lately: who, when, what.

import { keyed, make, part } from "./dom.js";
import { number } from "./figure.js";
import { written } from "./money.js";
import { when } from "./sale.js";
import { readEvery } from "./session.js";
import { along } from "./ways.js";
import { both as texts } from "./overview_texts.js";

const EVERY_MS = 5_000;
const READ = 200;
const SHOWN = 30;
const TIMES = ["starts_at", "ends_at"];
const NEVER = [...TIMES, "limit_per_buyer"]; // of these 0 is none
const clock = new Intl.DateTimeFormat(texts.locale, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

function value(name, it, facts) {
  if (it === undefined || it === null || it === "") return texts.none;
  if (name === "price") return written(it, facts.currency, texts.locale);
  if (it === 0 && NEVER.includes(name)) return texts.none;
  if (typeof it === "object") return Object.values(it).map(texts.quoted).join(" ");
  if (TIMES.includes(name)) return when(it, Date.now() / 1_000);
  return typeof it === "number" ? number(it) : String(it);
}

function difference(change) {
  const { before, after } = change;
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])].filter((name) => name !== "currency" && JSON.stringify(before[name]) !== JSON.stringify(after[name]));
  const said = (name) => [before, after].map((facts) => value(name, facts[name], facts));
  const words = ([was, is]) => (was === texts.none ? is : `${was} → ${is}`);
  return names.map((name) => `${texts.fields[name] ?? name} ${words(said(name))}`).join(texts.comma);
}

/** By how much a sum of an order has grown, in words, in whichever currency; "" if it has not. */
function grown({ before, after }, name) {
  const all = ({ currency, other_currencies: others = {}, ...own }) => ({ ...others, [currency ?? ""]: own });
  const [was, is] = [all(before), all(after)];
  const more = Object.entries(is).map(([currency, of]) => [currency, (of[name] ?? 0) - (was[currency]?.[name] ?? 0)]);
  return more.filter(([, by]) => by > 0).map(([currency, by]) => written(by, currency, texts.locale)).join(" + ");
}

/** A change as a person would tell it. */
function sentence(change) {
  const { what, sku, before, after } = change;
  const name = after.order ?? sku;
  const tell = texts.tales;
  if (what === "refund") {
    const [back, owed] = ["given_back", "owed"].map((sum) => grown(change, sum));
    return back ? tell.noted(name, back) : owed ? tell.owed(name, owed) : tell.refund(name);
  }
  if (what === "cancel" && after.state !== "cancelled") return tell.cancelUnits(name, number(before.units - after.units));
  if (what === "stock") return tell.stock(name, number(after.stock), number(before.stock ?? 0));
  if (what === "pause") return tell.pause(name, after.paused);
  const said = what === "new sale" || what === "terms" ? difference(change) : "";
  return (tell[what] ?? tell.other)(name, what) + (said && texts.colon + said);
}

/** A sentence in which the order, or the item, is a link. */
function linked(change) {
  const name = change.after.order ?? change.sku;
  const [before, ...after] = sentence(change).split(name);
  const link = make("a", "", name);
  link.href = change.after.order ? `/control/orders${along({ open: name })}` : `/control${along({ sku: name })}`;
  return make("span", "words", before, link, after.join(name));
}

function timeOf({ at }) {
  const made = make("time", "", clock.format(at * 1_000));
  made.dateTime = new Date(at * 1_000).toISOString();
  return made;
}

const who = ({ by }) => make("strong", "", by ? texts.who(by) : texts.somebody);

/** Changes one after the other by the same hand to the same effect are one line, to be unfolded. */
function folded(changes) {
  const found = [];
  for (const change of changes) {
    const last = found.at(-1)?.[0];
    const machine = change.by?.includes(" "); // no operator's name has a blank
    if (last && last.by === change.by && (machine || (last.what === change.what && last.sku === change.sku))) found.at(-1).push(change);
    else found.push([change]);
  }
  return found;
}

const lines = keyed(
  part("log"),
  (group) => `${group.length} ${group.at(-1).at} ${group[0].sku} ${group[0].what}`,
  (group) => {
    const [last] = group;
    const line = make("li", "", timeOf(last), make("span", "", who(last), " ", linked(last)));
    if (group.length === 1) return line;
    const all = make("details", "", make("summary", "", texts.before(number(group.length - 1))));
    all.append(...group.slice(1).map((one) => make("p", "", timeOf(one), " ", linked(one))));
    line.append(all);
    return line;
  },
  () => {},
);

/** Show the last changes, and look for new ones. */
export function followChanges() {
  readEvery(EVERY_MS, `/log?limit=${READ}`, (found) => {
    part("no-changes").hidden = found.length > 0;
    lines(folded(found).slice(0, SHOWN));
  });
}
