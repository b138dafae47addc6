// A press, and all that is kept of it until it has an answer.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { answer, anew, define, elapse, settle, timers, visit } from "./stand_in.mjs";
import { browser, tab } from "./static/keep.js";
import { buyerName, forget, knownBuyer, press, unanswered } from "./static/press.js";

const WISH = { quantity: 1, holds: false, sale: "s1", price: 100 };
const SOLD = { json: { outcome: "sold", order: "x~1~aa" } };

beforeEach(() => {
  anew();
  tab.remove(`press.phone.${buyerName()}`);
});

const keys = (requests) => requests.map(({ headers }) => headers["Idempotency-Key"]);

/** Press, let all pauses elapse, and return the outcome, the pauses, and what `onRetry` was told. */
async function pressed(wish = WISH) {
  const [told, pauses] = [[], []];
  let outcome;
  press("phone", wish, (...tries) => told.push(tries)).then((found) => (outcome = found));
  await settle();
  while (outcome === undefined) {
    if (timers.length > 0) pauses.push(await elapse());
    else await settle();
  }
  return { outcome, pauses, told };
}

test("a press asks for one unit of the item, for this browser's buyer, with a POST", async () => {
  const requests = answer(SOLD);
  assert.deepEqual((await pressed()).outcome, SOLD.json);
  const [path, query] = requests[0].path.split("?");
  const { sku, quantity, buyer } = Object.fromEntries(new URLSearchParams(query));
  assert.deepEqual([path, requests[0].method, sku, quantity], ["/stock/reduce", "POST", "phone", "1"]);
  assert.match(buyer, /^guest-[0-9a-f]{12}$/);
  assert.equal(buyer, buyerName());
});

test("a basket has its lines, in the request and when it is sent again", async () => {
  const items = [{ sku: "phone", quantity: 1 }, { sku: "case", quantity: 2 }];
  const requests = answer({ status: 503 }, { json: { outcome: "sold_out", line: "case" } });
  const { outcome } = await pressed({ ...WISH, holds: true, items });
  assert.deepEqual([outcome.line, requests.map(({ path }) => path)], ["case", ["/holds", "/holds"]]);
  assert.deepEqual(requests.map(({ body }) => JSON.parse(body)), Array(2).fill({ items, buyer: buyerName() }));
});

test("a press that has an answer is over, and the next one has another key", async () => {
  const requests = answer(SOLD);
  await pressed();
  assert.equal(unanswered("phone"), null);
  await pressed();
  assert.equal(new Set(keys(requests)).size, 2);
  assert.match(keys(requests)[0], /^[0-9a-f]{32}$/);
});

test("without an answer the same key is sent again, after pauses that double", async () => {
  const requests = answer({ status: 0 }, { status: 503 }, { status: 408 }, SOLD);
  const { outcome, pauses, told } = await pressed();
  assert.deepEqual(outcome, SOLD.json);
  assert.deepEqual(told.map(([attempt, tries]) => [attempt, tries]), [[2, 5], [3, 5], [4, 5]]);
  pauses.forEach((pause, place) => assert.ok(pause >= 1_000 * 2 ** place && pause <= 1_250 * 2 ** place, String(pauses)));
  assert.deepEqual([keys(requests).length, new Set(keys(requests)).size], [4, 1]);
});

test("after five tries its outcome is unknown; the next press asks about the same purchase", async () => {
  const unheard = answer({ status: 0 });
  assert.deepEqual((await pressed()).outcome, { outcome: "unknown" });
  assert.equal(unheard.length, 5);
  assert.equal(unanswered("phone"), "fresh");
  assert.equal(unanswered("book"), null);
  const heard = answer(SOLD);
  await pressed();
  assert.deepEqual(keys(heard), [keys(unheard)[0]]);
});

test("a press that is sent again asks for what it asked for, whatever is wished by then", async () => {
  await pressed({ ...WISH, quantity: 3, holds: true });
  const requests = answer({ json: { outcome: "held" } });
  await pressed();
  assert.deepEqual([requests[0].path, JSON.parse(requests[0].body).quantity], ["/holds", 3]);
});

test("a press that waits in line says so, also when it is sent again", async () => {
  await pressed({ ...WISH, holds: true, wait: true });
  const requests = answer({ json: { outcome: "waiting" } });
  await pressed();
  await pressed({ ...WISH, holds: true });
  assert.deepEqual(requests.map(({ body }) => JSON.parse(body).wait), [true, undefined]);
});

test("a press without an answer is not sent again by itself at another price, and never in another sale", async () => {
  await pressed();
  const states = [{}, { sale: "s1", price: 100 }, { sale: "s1", price: 200 }, { sale: "s2", price: 100 }, { sale: null, price: 100 }];
  assert.deepEqual(states.map((now) => unanswered("phone", now)), ["fresh", "fresh", "old", "over", "fresh"]);
  forget("phone");
  assert.equal(unanswered("phone"), null);
});

test("a guest who only looks gets no name", () => {
  browser.remove("buyer");
  assert.equal(knownBuyer(), null);
  assert.equal(browser.get("buyer"), null);
});

test("nobody waits any more for a press of two minutes ago", async (t) => {
  await pressed();
  const now = Date.now();
  t.mock.method(Date, "now", () => now + 119_000);
  assert.equal(unanswered("phone"), "fresh");
  t.mock.method(Date, "now", () => now + 121_000);
  assert.equal(unanswered("phone"), "old");
});

test("it waits for as long as the service asks for, unless that is too long", async () => {
  answer({ status: 503, headers: { "Retry-After": "3" } }, SOLD);
  const { pauses } = await pressed();
  assert.ok(pauses[0] >= 3_000 && pauses[0] <= 3_750, String(pauses));
  const requests = answer({ status: 502, headers: { "Retry-After": "60" } });
  assert.deepEqual((await pressed()).outcome, { outcome: "unknown" });
  assert.equal(requests.length, 1);
});

test("a press of which another sale has begun meanwhile is not sent again", async () => {
  const requests = answer({ status: 502 });
  const told = press("phone", WISH, () => {}, () => true);
  await settle();
  await elapse();
  assert.deepEqual([await told, requests.length, unanswered("phone")], [{ outcome: "over" }, 1, null]);
});

test("a press that was refused as one too many each time bought nothing, and is over", async () => {
  const refused = answer({ status: 429 });
  const { outcome, told } = await pressed();
  assert.deepEqual(outcome, { outcome: "too_often" });
  assert.deepEqual(told.map(([, , tooOften]) => tooOften), [true, true, true, true]);
  assert.equal(unanswered("phone"), null);
  const next = answer(SOLD);
  await pressed();
  assert.notEqual(keys(next)[0], keys(refused)[0]);
});

test("a press of which one try was not answered may have bought, though the others were refused", async () => {
  answer({ status: 0 }, { status: 429 });
  assert.deepEqual((await pressed()).outcome, { outcome: "unknown" });
  assert.equal(unanswered("phone"), "fresh");
  answer({ status: 429 });
  assert.deepEqual((await pressed()).outcome, { outcome: "unknown" }); // the first try is still not known
});

test("a refusal is told by its type and status, also a proxy's that is no document", async () => {
  answer({ status: 404, json: { type: "urn:seckill:unknown-item" } });
  assert.deepEqual((await pressed()).outcome, { problem: { type: "urn:seckill:unknown-item", status: 404 } });
  answer({ status: 403, body: "<p>no" });
  assert.deepEqual((await pressed()).outcome, { problem: { type: "undefined", status: 403 } });
  assert.equal(unanswered("phone"), null);
});

test("a refusal says nothing of an earlier try that was not heard: the key stays, and asks once more", async () => {
  const refused = { status: 403, json: { type: "urn:seckill:buyer-not-signed" } };
  const requests = answer({ status: 0 }, refused);
  const problem = { type: "urn:seckill:buyer-not-signed", status: 403 };
  assert.deepEqual((await pressed()).outcome, { outcome: "unknown", problem });
  assert.equal(unanswered("phone"), "fresh");
  const again = answer(refused, SOLD);
  assert.deepEqual((await pressed()).outcome, { outcome: "unknown", problem });
  assert.deepEqual((await pressed()).outcome, SOLD.json);
  assert.equal(new Set([...keys(requests), ...keys(again)]).size, 1);
  answer({ status: 0 }, { status: 422, json: { type: "urn:seckill:key-reused" } });
  assert.equal((await pressed()).outcome.problem.type, "urn:seckill:key-reused"); // it can never be answered
  assert.equal(unanswered("phone"), null);
});

test("a press without an answer is its buyer's alone, also after another one's in the same tab", async () => {
  const of = (name) => `/#buyer=x.${Buffer.from(JSON.stringify({ sub: name })).toString("base64url")}.y`;
  visit(of("ann"), "en");
  const unheard = answer({ status: 0 });
  assert.equal(buyerName(), "ann");
  await pressed();
  assert.equal(unanswered("phone"), "fresh");
  visit(of("bob"), "en");
  assert.equal(buyerName(), "bob");
  assert.deepEqual([knownBuyer(), unanswered("phone")], ["bob", null]);
  const requests = answer({ json: { outcome: "sold_out" } });
  await pressed();
  assert.notEqual(keys(requests)[0], keys(unheard)[0]);
  visit(of("ann"), "en");
  assert.equal(buyerName(), "ann");
  assert.equal(unanswered("phone"), "fresh");
  const again = answer(SOLD);
  await pressed();
  assert.equal(keys(again)[0], keys(unheard)[0]);
  tab.remove("given");
});

test("a buyer whom the shop in front has signed has the name in the token, and sends the token", async () => {
  const token = `x.${Buffer.from('{"sub": "ann?>"}').toString("base64url")}.y`;
  visit(`/#buyer=${token}`, "en");
  assert.equal(buyerName(), "ann?>");
  const requests = answer(SOLD);
  await pressed();
  assert.equal(requests[0].headers.Authorization, `Bearer ${token}`);
  assert.equal(location.hash, ""); // nobody else is sent it with the address
});

test("a browser that refuses storage remembers for as long as the page is there", async (t) => {
  const kept = globalThis.localStorage;
  t.after(() => define("localStorage", kept));
  Object.defineProperty(globalThis, "localStorage", {
    configurable: true,
    get() {
      throw new DOMException("no");
    },
  });
  browser.set("thing", [1]);
  assert.deepEqual(browser.get("thing"), [1]);
  browser.remove("thing");
  assert.equal(browser.get("thing"), null);
  assert.equal(buyerName(), buyerName());
});

test("storage that holds something else is no error", () => {
  localStorage.setItem("seckill.odd", "{");
  assert.equal(browser.get("odd"), null);
});
