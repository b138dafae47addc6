// How a sale stands, and every word of every page.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { anew, visit } from "./stand_in.mjs";
import { choose } from "./static/language.js";
import { countdown, opening, pauseText, phaseOf, remarkOf, wordsOf } from "./static/sale.js";

beforeEach(anew);

test("a sale is before its start, open, sold out or ended, by the service's clock", () => {
  const level = { stock: 1, starts_at: 100, ends_at: 200 };
  assert.deepEqual([99.9, 100, 199.9, 200].map((now) => phaseOf(level, now)), ["before", "open", "open", "ended"]);
  assert.deepEqual([99.9, 100, 200].map((now) => phaseOf({ ...level, stock: 0 }, now)), ["before", "sold_out", "ended"]);
  assert.equal(phaseOf({ stock: 1, starts_at: null, ends_at: null }, 0), "open");
  assert.equal(phaseOf(null, null), "unknown");
  const paused = { ...level, paused: "Tea" };
  assert.deepEqual([99.9, 100, 200].map((now) => phaseOf(paused, now)), ["before", "paused", "ended"]);
  assert.equal(phaseOf({ ...paused, stock: 0, paused: "" }, 100), "sold_out");
});

test("while others hold units or wait for them, nobody else can have what is left", () => {
  const phases = [[1, 0, 0], [1, 0, 1], [0, 1, 0], [1, 1, 7], [0, 0, 7]].map(([stock, held, waiting]) => phaseOf({ stock, held, waiting, starts_at: null, ends_at: null }, 0));
  assert.deepEqual(phases, ["open", "all_held", "all_held", "all_held", "sold_out"]);
});

test("a countdown has two digits each, and hours and a day only if there are any; more days are days", () => {
  assert.deepEqual([0, 59, 60, 3_599, 3_600, 86_399].map(countdown), ["00:00", "00:59", "01:00", "59:59", "01:00:00", "23:59:59"]);
  assert.deepEqual([86_400, 100 * 86_400 + 3_661].map(countdown), ["1 d 00:00:00", "100 days"]);
});

test("an opening has its day if that is not today", () => {
  const noon = new Date(2026, 10, 11, 12).getTime() / 1_000;
  assert.match(opening({ starts_at: noon + 3_600 }, noon), /^Opens at 1(3:00|:00 PM)$/u);
  assert.match(opening({ starts_at: noon + 86_400 }, noon), /^Opens on .*12.*$/u);
});

test("where all units are held it is said when the first of them may come back", () => {
  const noon = new Date(2026, 10, 11, 12).getTime() / 1_000;
  assert.match(remarkOf("all_held", { goes_back_at: noon + 3_600 }, noon), /^Some may come back at 1(3:00|:00 PM): not everybody pays$/u);
  for (const goes_back_at of [noon, null, undefined]) {
    assert.equal(remarkOf("all_held", { goes_back_at }, noon), "Some may come back: not everybody pays");
  }
  assert.equal(remarkOf("all_held", { waiting: 7 }, noon), "Some may come back: not everybody pays · 7 in line");
  assert.deepEqual([remarkOf("sold_out", {}, noon), remarkOf("paused", { paused: "Tea" }, noon), remarkOf("unknown", null, null)], ["Units may come back", "Tea", ""]);
});

test("a pause is told in the reader's language, if it was said in it", () => {
  assert.deepEqual([{ paused: "Tea" }, { paused: "Tea", paused_texts: { zh: "茶", en: "Tea time" } }].map(pauseText), ["Tea", "Tea time"]);
});

test("an error has words of ours, or its status, and never the service's", () => {
  assert.match(wordsOf({ type: "urn:seckill:unknown-item", status: 404 }), /^There is no such item any more/);
  for (const type of ["urn:seckill:new-one", "undefined", "about:blank", "urn:seckill:toString"]) {
    assert.equal(wordsOf({ type, status: 418 }), "The service refused it (418). Reload the page and press again.");
  }
});

test("the address decides on the language, then the browser's wish; else it is English", () => {
  const languages = { en: { word: "yes" }, zh: { word: "是" } };
  for (const [address, wishes, word, locale] of [
    ["/", ["zh-CN"], "是", "zh-CN"],
    ["/", ["zh-TW"], "是", "zh-TW"],
    ["/", ["en-US"], "yes", "en-US"],
    ["/", ["fr-FR"], "yes", "en"],
    ["/", ["fr-FR", "zh"], "是", "zh"],
    ["/?lang=zh", ["en-GB"], "是", "zh"],
    ["/?lang=en", ["zh-CN"], "yes", "en"],
    ["/?lang=toString", ["zh-CN"], "是", "zh-CN"],
  ]) {
    visit(address, ...wishes);
    assert.deepEqual(choose(languages), { word, locale }, address + wishes);
  }
});

/** Each text with its name; functions are called with numbers, and those of events with facts. */
function* told(words, name = "") {
  const facts = new Proxy({}, { get: () => "7" });
  if (typeof words === "string") yield [name, words];
  else if (typeof words === "function") yield* told([words("7", name.startsWith(".events.") ? facts : "7", "7", "7", "7")].flat(), name);
  else if (Array.isArray(words) && words.every((one) => typeof one !== "object")) yield [name, words.join()];
  else for (const [key, value] of Object.entries(words)) yield* told(value, `${name}.${key}`);
}

const NAMES = /SECKILL_ADMIN_TOKENS?|\b(Esc|English|Stripe|CSV|JSON Lines|MB|payment_ref|kind|amount|currency|seckill payments reconcile)\b/g;

for (const file of ["texts.js", "control_texts.js", "ledger_texts.js", "overview_texts.js", "reconcile_texts.js", "rehearsal_texts.js", "undelivered_texts.js"]) {
  test(`${file} says the same things in each language, and in Chinese no English`, async () => {
    const texts = {};
    for (const language of ["en", "zh"]) {
      visit("/", language);
      ({ texts: texts[language] } = await import(`./static/${file}?${language}`));
      texts[language] = new Map(told(texts[language]));
    }
    assert.deepEqual([...texts.zh.keys()].sort(), [...texts.en.keys()].sort());
    for (const [name, text] of texts.zh) {
      if ([".words", ".language", ".locale", ".otherLanguage", ".catalogue"].includes(name)) continue;
      const english = text.replaceAll(NAMES, "").match(/[A-Za-z]+/);
      assert.equal(english, null, `${name}: ${text}`);
    }
  });
}
