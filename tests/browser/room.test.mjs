// The control room's conclusions from the pictures that it is sent.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { anew, define } from "./stand_in.mjs";
import { ghosts } from "./static/belief.js";
import { about, age, milliseconds, number, seconds } from "./static/figure.js";
import { judge } from "./static/health.js";
import { tale } from "./static/story.js";
import { kindOf } from "./static/verdict.js";

beforeEach(anew);

const INSTANCE = { instance: "a", token: null, paused_s: 0, silent_s: 0, silent: false, lacks: [], waiting: 0, units: 0 };
const PICTURE = {
  at: 100,
  level: { stock: 5, lucky: 0 },
  missing: false,
  store_error: null,
  lock_error: null,
  lock: { system: "etcd", keeps_apart: "all processes" },
  instances: [INSTANCE, { ...INSTANCE, instance: "b" }],
  queue: [],
  grants: [],
  audit: null,
};

/** A picture in which the first instance and others are different. */
const picture = (own, others = {}) => ({ ...PICTURE, ...others, instances: [{ ...INSTANCE, ...own }, PICTURE.instances[1]] });

let modules = 0;

/** A module that has seen nothing yet. */
const fresh = (name) => import(`./static/${name}?${(modules += 1)}`);

test("the light is the worst of what is wrong", () => {
  const lacks = ["store", "odd"];
  const all = PICTURE.instances.map((one) => ({ ...one, lacks }));
  const broken = { consistent: false };
  for (const [seen, kind, words] of [
    [PICTURE, "good", "Ready to sell"],
    [picture({ waiting: 1 }), "good", "Selling"],
    [picture({}, { level: { stock: 0 } }), "good", "Sold out"],
    [picture({ silent: true }), "warn", "Selling without one instance"],
    [picture({ silent: true }, { level: { stock: 0 } }), "warn", "Selling without one instance"],
    [{ ...PICTURE, instances: [{ ...INSTANCE, silent: true }, { ...INSTANCE, lacks }, INSTANCE] }, "warn", "Selling without 2 instances"],
    [picture({ paused_s: 1, lacks }), "warn", "The holder stands still"],
    [{ ...PICTURE, instances: all }, "bad", "Nothing is sold: waiting for the store, odd"],
    [{ ...PICTURE, instances: all, audit: broken }, "bad", "The books don't add up"],
    [picture({}, { audit: { consistent: true } }), "good", "Ready to sell"],
    [picture({}, { audit: broken, lock_error: "no" }), "bad", "Nothing is sold: waiting for etcd"],
    [picture({}, { lock_error: "no", store_error: "no", level: null }), "bad", "Nothing is sold: the store is away"],
    [picture({}, { missing: true, store_error: "no", level: null }), "warn", "No such item"],
  ]) {
    assert.deepEqual(judge(seen), [kind, words]);
  }
});

test("a holder is no ghost; an instance that only believes so is one when it stands still, or after a while", async () => {
  const { ghosts } = await fresh("belief.js");
  const held = { queue: [{ instance: "a", token: "9", holds: true }] };
  assert.deepEqual(ghosts(picture({ token: "9", paused_s: 3 }, held)), []);
  const taken = { queue: [{ instance: "b", token: "12", holds: true }], grants: [{ instance: "c", token: "10" }, { instance: "a", token: "9" }] };
  const [ghost] = ghosts(picture({ token: "9", paused_s: 3 }, taken));
  assert.deepEqual(ghost, { instance: "a", token: "9", paused_s: 3, silent_s: 0, heir: { instance: "c", token: "10" } });
  // Its heir stays its heir; without a pause it may be an old report.
  const awake = (at, token = "9") => ghosts(picture({ token }, { at, grants: [{ instance: "b", token: "12" }] }));
  assert.deepEqual([awake(101.4), awake(101.6)[0].heir.instance], [[], "c"]);
  assert.deepEqual([awake(200, "11"), awake(201.6, "11")[0].heir.instance], [[], "b"]);
  assert.deepEqual([awake(300, "0"), awake(300, null)], [[], []]);
  assert.deepEqual(awake(301, "11"), []); // a new belief
});

test("tokens are compared as numbers, however long they are", () => {
  const grants = [{ instance: "b", token: "10000000000000000001" }, { instance: "c", token: "9" }];
  const [{ heir }] = ghosts(picture({ token: "10000000000000000000", paused_s: 1 }, { grants }));
  assert.equal(heir.instance, "b");
  assert.equal(ghosts(picture({ token: "99", paused_s: 1 }, { grants: [{ instance: "c", token: "9" }] }))[0].heir, null);
});

test("the last holder of the lock is known for a second after it, and only while nobody has it", async () => {
  const { lately } = await fresh("belief.js");
  const grant = (instance, token, at, held_ms) => ({ instance, token, at, held_ms });
  const free = (at, ...grants) => lately(picture({}, { at, grants }))?.instance;
  assert.equal(free(100), undefined);
  assert.equal(lately(picture({}, { queue: [{ instance: "a", token: "9", holds: true }] })), null);
  assert.deepEqual([free(100.9), free(101.1)], ["a", undefined]);
  // Of two grants the later one counts, though an overtaken holder gives its own back after it.
  assert.equal(free(110, grant("b", "12", 109.5, 10), grant("a", "11", 100, 9_900)), "b");
  assert.equal(lately(picture({}, { at: 110, lock_error: "no" })), null);
  assert.equal(lately(picture({}, { at: 110, lock: { system: "none", keeps_apart: "nobody" } })), null);
});

const AT = { level: { stock: 90, lucky: 10, initial: 100 }, lock: { ttl_s: 3 } };

/** The story of a pause, in which these steps have happened. */
function story(steps, seen = AT) {
  const facts = { buyers: 30, instances: ["a", "b"], for_s: 6, by: "b", by_token: 8 };
  const known = new Map(Object.entries(steps).map(([step, kind]) => [step, { kind, at: 1, facts }]));
  return tale({ instance: "a", token: "7", steps: known }, seen);
}

test("a story names the steps to come, and those of a guided start begin with its buyers", () => {
  const begun = story({ buyers: "rush" }).lines;
  assert.deepEqual(begun.map(({ step }) => step), ["buyers", "paused", "ran_out", "overtaken", "end"]);
  assert.deepEqual(begun.map(({ words }) => words !== ""), [true, false, false, false, false]);
  assert.match(begun[0].words, /^30 people want one unit each, at a and b\./);
  assert.deepEqual(story({ paused: "paused" }).lines.map(({ words }) => words !== ""), [true, false, false, false]);
  assert.equal(story({ paused: "paused", end: "woke" }).result, "open");
});

test("how a story ends: refused, taken rightly, or taken although another had the lock", () => {
  const sold = { ...AT, level: { stock: 90, lucky: 30, initial: 100 } };
  const overtaken = { paused: "paused", ran_out: "ran_out", overtaken: "overtaken" };
  for (const [steps, seen, result, words] of [
    [{ ...overtaken, end: "fenced" }, AT, "good", /7\. The store refused it/],
    [{ paused: "paused", end: "wrote" }, AT, "good", /and rightly/],
    [{ ...overtaken, end: "wrote" }, sold, "bad", /20 units too many/],
    [{ ...overtaken, end: "wrote" }, AT, "bad", /forgotten/],
  ]) {
    const { result: found, lines } = story(steps, seen);
    assert.equal(found, result);
    assert.match(lines.at(-1).words, words);
    assert.equal(lines.length, Object.keys(steps).length); // what did not happen is not told
  }
});

test("there are no ghosts while nobody knows who holds the lock, or when it keeps nobody apart", () => {
  for (const others of [{ lock_error: "no" }, { lock: { system: "none", keeps_apart: "nobody" } }]) {
    assert.deepEqual(ghosts(picture({ token: "5", paused_s: 1 }, others)), []);
  }
});

const served = (at, a, b, level = { stock: 90, lucky: 10 }) => ({
  at,
  level,
  instances: [{ instance: "a", served: a }, ...(b === undefined ? [] : [{ instance: "b", served: b }])],
});

test("rates are buyers over time, and an instance that has started anew counts from 0", async () => {
  const { remember, rates, ratesNow, seen } = await fresh("history.js");
  for (const one of [served(10, 100), served(12, 104, 7), served(14, 6, 7)]) remember(one);
  assert.deepEqual(seen(), ["a", "b"]);
  assert.deepEqual(rates(["a", "b"]), [[10, 12, 14], [null, 2, 3], [null, null, 0]]);
  assert.deepEqual([...ratesNow()], [["a", 3], ["b", 0]]);
});

test("a rate is over more than a second: over less it would flicker", async () => {
  const { remember, rates } = await fresh("history.js");
  for (const one of [served(10, 0), served(10.5, 0), served(11, 7), served(11.5, 9), served(12, 14)]) remember(one);
  assert.deepEqual(rates(["a"])[1].map((rate) => rate && Math.round(10 * rate) / 10), [null, 0, 7, 6, 9.3]);
});

test("the curves have a hole where nothing was heard, over which nobody is served", async () => {
  const { remember, levels, rates } = await fresh("history.js");
  for (const one of [served(10, 0), served(20, 50, undefined, null), served(22, 54)]) remember(one);
  remember(served(21, 99)); // of an instance whose clock is behind
  assert.deepEqual(levels(), [[10, 15, 20, 22], [null, null, null, null], [90, null, null, 90]]);
  assert.deepEqual(rates(["a"])[1], [null, null, null, 2]);
});

test("the time before the page was opened is remembered once, and two minutes are shown", async () => {
  const { recall, remember, levels, span } = await fresh("history.js");
  recall({ samples: [{ at: 10, stock: 9, lucky: 1, served: { a: 1 } }, { at: 12, stock: 7, held: 1, lucky: 2, served: { a: 2 } }] });
  recall({ samples: [{ at: 5, stock: 9, lucky: 1, served: {} }] });
  assert.deepEqual(levels(), [[10, 12], [9, 8], [9, 7]]);
  assert.deepEqual(span(), [-8, 12]);
  remember(served(135, 3));
  assert.deepEqual(span(), [15, 135]);
  remember(served(140, 3));
  assert.equal(levels()[0][0], 73.5); // older than that is forgotten
});

test("lanes have the grants of before and of now, once each, and marks for two minutes", async () => {
  const told = {};
  define("matchMedia", () => new EventTarget());
  define("document", { getElementById: () => ({ setAttribute: (name, text) => (told[name] = text) }) });
  const { closeUp, recall, showLanes, marks } = await fresh("lanes.js");
  const grant = (token, at) => ({ instance: "a", token, at, held_ms: 20, purchases: 1, units: 1, waited_ms: 0 });
  const event = (id, kind) => ({ id, kind, at: 100, instance: "a", facts: { of: "b", by: "c", token: 7, for_s: 5 } });
  recall({ grants: [grant("1", 30), grant("2", 50), grant("3", 60)] });
  const events = [event("x", "fenced"), event("y", "came"), event("z", "overtaken")];
  showLanes(picture({}, { at: 100, grants: [grant("3", 60), grant("4", 99)], events }), null);
  assert.equal(told["aria-label"], "Who had the lock over time: 2 instances, 3 grants in the last minute.");
  assert.deepEqual(marks().map(({ kind, lane, to }) => [kind, lane, to]), [["fenced", "b", "c"], ["overtaken", "b", "c"]]);
  showLanes(picture({}, { at: 221, events: [] }), null);
  assert.deepEqual(marks(), []);
  // A pause is looked at closely, with what is before and after it.
  assert.deepEqual(closeUp({ at: 100, for_s: 8 }, 4), [99, 109]);
  assert.deepEqual(closeUp({ at: 100, for_s: 1 }, 4), [99, 105]);
});

test("what a pause is about is kept for as long as its story is told, and is forgotten after it", async () => {
  define("matchMedia", () => new EventTarget());
  define("document", { getElementById: () => ({ setAttribute: () => {} }) });
  const { showLanes, marks } = await fresh("lanes.js");
  const pause = { id: "p", at: 100, for_s: 5 };
  const events = [{ id: "x", kind: "fenced", at: 104, instance: "a", facts: { of: "a", token: 7 } }];
  showLanes(picture({}, { at: 105, events }), pause);
  showLanes(picture({}, { at: 400, events: [] }), pause);
  assert.deepEqual(marks().map(({ kind }) => kind), ["fenced"]);
  showLanes(picture({}, { at: 401, events: [] }), null);
  assert.deepEqual(marks(), []);
});

test("a verdict from before a write that should not have been taken says nothing, and units that don't add up need none", () => {
  const audit = { at: 100, consistent: true };
  const level = { initial: 10, stock: 4, held: 1, lucky: 5 };
  assert.equal(kindOf({ at: 105, audit, level }), "consistent");
  assert.equal(kindOf({ at: 105, audit, level }, 101), "pending");
  assert.equal(kindOf({ at: 105, audit, level }, 99), "consistent");
  assert.equal(kindOf({ at: 105, audit, level: { ...level, lucky: 6 } }), "uneven");
  assert.equal(kindOf({ at: 105, audit: { ...audit, consistent: false }, level }), "violated");
  assert.deepEqual([{ at: 105, audit: null }, { at: 161, audit }].map((one) => kindOf(one)), ["nobody", "nobody"]);
});

test("the pace is what was sold over some seconds, of each item and of all, and a new sale is none", async () => {
  const { remember, paceOf } = await fresh("pace.js");
  const sold = (a, b) => [{ sku: "a", level: { lucky: a } }, { sku: "b", level: { lucky: b } }, { sku: "c", level: null }];
  [sold(0, 50), sold(10, 50), sold(30, 0)].forEach((levels, place) => remember(100 + 5 * place, levels));
  assert.deepEqual(paceOf("a").map(({ value }) => value), [2, 4]);
  assert.deepEqual(paceOf("b").map(({ value }) => value), [0, 0]);
  assert.deepEqual(paceOf().map(({ value }) => value), [2, 4]);
  assert.deepEqual(paceOf("c"), []);
  remember(109, sold(99, 99)); // of an instance whose clock is behind
  assert.equal(paceOf().length, 2);
});

test("figures have a decimal where it says something", () => {
  assert.deepEqual([0, 0.04, 0.25, 3, 9.94, 9.96, 12.3].map(about), ["0", "0", "0.3", "3", "9.9", "10", "12"]);
  assert.deepEqual([number(12_345.6), seconds(1.25)], ["12,346", "1.3 s"]);
  assert.deepEqual([0.5, 999, 1_000, 12_340].map(milliseconds), ["0.5 ms", "999 ms", "1.0 s", "12.3 s"]);
  assert.deepEqual([0, 1.4, 1.6, 89, 90, 5_399, 5_400].map(age), ["just now", "just now", "2 s ago", "89 s ago", "2 min ago", "90 min ago", "2 h ago"]);
});
