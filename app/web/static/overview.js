// The whole sale on one page, which stays open on the wall: its totals, what is wrong, and each item.

import "./theme.js";
import { followChanges } from "./changes.js";
import { keyed, make, part, write } from "./dom.js";
import { about, number } from "./figure.js";
import { sums, written } from "./money.js";
import { paceOf, remember, shown } from "./pace.js";
import { wirePauseAll, showPauseAll } from "./pause_all.js";
import { follow, midnight, showDays } from "./report.js";
import { furnish, wireRoom } from "./room.js";
import { toTheDoor } from "./session.js";
import { draw, spark } from "./spark.js";
import { called, standing, things } from "./thing.js";
import { showVerdict } from "./verdict.js";
import { along } from "./ways.js";
import { both as texts } from "./overview_texts.js";

const EVERY_MS = 2_000;
const PATIENCE_MS = 10_000;
const NEEDS_A_LOOK = "`seckill orders list --state attention`"; // in a warning: here it is a link

let before = null; // the last answer
let report = null; // the last report

const wrongs = keyed(
  part("wrongs"),
  ({ words, sku }) => `${sku} ${words}`,
  ({ sku, name }) => (sku ? linked(sku, name) : make("li", "", make("span", "words"))),
  (made, { kind, words }) => {
    made.dataset.kind = kind;
    const [said, command] = words.split(NEEDS_A_LOOK);
    if (command === undefined) return write(made.querySelector(".words"), words);
    if (made.querySelector(".words").textContent.startsWith(said)) return; // a link that has the focus keeps it
    const link = make("a", "", texts.words.toOrders);
    link.href = `/control/orders${along({ state: "attention" })}`;
    made.querySelector(".words").replaceChildren(`${said} `, link);
  },
);

function linked(sku, name) {
  const link = make("a", "", name);
  link.href = `/control${along({ sku })}`;
  return make("li", "", link, " ", make("span", "words"));
}

function showWrong({ items, warnings, lacks, audit }) {
  const found = [
    ...(lacks.length > 0 ? [{ kind: "bad", words: texts.lacks(lacks.map((one) => texts.checks[one] ?? one).join(texts.comma)) }] : []),
    ...(audit !== null && !audit.consistent ? [{ kind: "bad", words: texts.health.violated }] : []),
    ...items.flatMap((item) => item.wrong.map((words) => ({ kind: "bad", sku: item.sku, name: called(item), words }))),
    ...warnings.map((words) => ({ kind: "warn", words })),
  ];
  part("wrong").hidden = found.length === 0;
  part("wrong").dataset.kind = found.some(({ kind }) => kind === "bad") ? "bad" : "warn";
  wrongs(found);
}

/** The sale in a word: whether anything is sold now. */
function showHealth({ items, at, ready, audit }) {
  const kinds = items.map((item) => standing(item, at, paceOf(item.sku).at(-1)?.value ?? 0));
  const some = (kind) => kinds.includes(kind);
  const kind = !ready || some("wrong") || (audit !== null && !audit.consistent) ? "bad" : some("selling") || some("open") ? "good" : some("paused") ? "warn" : "";
  const words = kind === "bad" ? texts.wrongNow : ["selling", "open", "paused", "before", "all_held", "sold_out", "ended"].find(some) ?? "off";
  part("health").dataset.kind = kind;
  write(part("health"), texts.kinds[words] ?? words);
}

function showTotals({ items, at, audit }) {
  const levels = items.flatMap(({ level }) => (level === null ? [] : [level]));
  const sum = (name) => levels.reduce((all, level) => all + level[name], 0);
  const total = sum("stock") + sum("held") + sum("lucky");
  write(part("all-sold"), number(sum("lucky")));
  write(part("all-share"), total > 0 ? texts.share(number((100 * sum("lucky")) / total)) : "");
  write(part("all-left"), number(sum("stock")));
  write(part("all-of"), texts.of(number(total)));
  write(part("all-held"), number(sum("held")));
  write(part("held-note"), texts.notPaidYet(sum("waiting")));
  const rates = paceOf();
  write(part("all-rate"), rates.length === 0 ? "–" : about(rates.at(-1).value));
  draw(line, rates, at, shown());
  write(part("items-said"), texts.items(items.length, number(items.length)));
  showVerdict({ at, audit });
}

/** A sum of each currency: the largest is what one sees first. */
function showSum(id, money, which) {
  const found = Object.entries(money).filter(([, of]) => of[which] !== 0).sort(([, one], [, other]) => other.paid - one.paid);
  const words = found.map(([currency, of]) => written(of[which], currency, texts.locale));
  const now = words.join();
  if (part(id).dataset.now === now) return;
  part(id).dataset.now = now;
  part(id).replaceChildren(words[0] ?? "–", ...words.slice(1).map((sum) => make("span", "", sum)));
}

function showMoney() {
  const { total } = report;
  for (const [id, which] of [["all-money", "paid"], ["all-kept", "kept"], ["all-owed", "owed"]]) showSum(id, total.money, which);
  const back = sums(total.money, "given_back", texts.locale);
  write(part("all-back"), back ? texts.givenBack(back) : "");
  write(part("all-ship"), total.to_ship > 0 ? texts.toShip(number(total.to_ship)) : "");
  part("owed-tile").dataset.kind = total.attention > 0 ? "wrong" : "";
  write(part("attention"), total.attention > 0 ? texts.attention(total.attention, number(total.attention)) : "");
}

function show(found) {
  remember(found.at, found.items);
  const money = new Map(report?.items.map((one) => [one.sku, one]));
  const sold = [...found.items].sort((one, other) => (one.level === null) - (other.level === null)); // what is not on sale comes last
  things(sold.map((item) => ({ ...item, at: found.at, money: money.get(item.sku) })));
  showWrong(found);
  showTotals(found);
  showHealth(found);
  showPauseAll(found.items, found.at);
  before = found;
}

async function look() {
  let state = "lost";
  try {
    const answer = await fetch("/control/overview", { signal: AbortSignal.timeout(PATIENCE_MS) });
    if (answer.status === 401 || answer.status === 403) return toTheDoor();
    if (answer.ok) {
      const found = await answer.json();
      if (found.at !== before?.at) show(found);
      state = "live";
      write(part("connection"), texts.connection.live(found.instance));
    }
  } catch {
    // it is tried again
  }
  part("connection").dataset.state = part("room").dataset.state = state;
  if (state === "lost") write(part("connection"), texts.connection.lost());
  setTimeout(look, EVERY_MS);
}

furnish("");
wireRoom("");
wirePauseAll();
const line = spark();
part("all-line").append(line);
part("attention").href = `/control/orders${along({ state: "attention" })}`;
look();
followChanges();
follow(
  () => `?since=${encodeURIComponent(midnight(366))}`,
  (found) => {
    report = found;
    showMoney();
    showDays(found);
  },
);
