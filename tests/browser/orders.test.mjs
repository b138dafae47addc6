// The orders that a browser keeps.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { answer, anew, elapse, settle, timers, visit } from "./stand_in.mjs";
import { browser } from "./static/keep.js";
import { shorten, skuOf } from "./static/order_id.js";
import { addressOf, homeOf, linesOf, linkOf, lookUp, ordersOf, shopOf, unitsOf } from "./static/orders.js";

const GONE = { status: 404, json: { type: "urn:seckill:http-404" } };

beforeEach(() => {
  anew();
  browser.remove("orders.phone");
  browser.remove("sale.phone");
});

test("orders whose numbers begin alike get as many groups as it takes", () => {
  const [one, alike, same] = ["abcd1234ef", "abcd1234f0", "abcd9"].map((secret, number) => `x~1-${number}~${secret}`);
  assert.equal(shorten(one, [one, same]), "ABCD-1234");
  assert.equal(shorten(one, [one, same, alike]), "ABCD-1234-EF");
  assert.equal(shorten("", []), "");
});

test("an order's number says its item; any other text says none", () => {
  assert.deepEqual(["phone~1-1~aa", "phone", "~1", ""].map(skuOf), ["phone", "", "", ""]);
});

test("a basket has lines and units of each; an order of one item has no lines, and an unknown one no units", () => {
  const [one, two, none] = [{ sku: "phone", quantity: 1 }, { sku: "case", quantity: 2 }, { sku: "cable", quantity: 0 }];
  const order = { quantity: 1, items: [one, two, none] };
  assert.deepEqual([linesOf(order), linesOf({ quantity: 1, items: [one] }), linesOf({})], [[one, two], [], []]);
  assert.deepEqual([unitsOf(order), unitsOf(order, "case"), unitsOf({ quantity: 4 }, "case"), unitsOf({})], [3, 2, 4, undefined]);
});

test("language and signed buyer go along to an order's page and back", () => {
  assert.equal(addressOf("phone~1~aa"), "/shop/order?id=phone%7E1%7Eaa");
  assert.deepEqual([shopOf("phone"), shopOf("default"), shopOf("phone", "phone~1")], ["/?sku=phone", "/", "/?sku=phone#hold=phone~1"]);
  visit("/?sku=phone&lang=zh#buyer=x.y.z", "en");
  assert.equal(addressOf("phone~1~aa"), "/shop/order?id=phone%7E1%7Eaa&lang=zh#buyer=x.y.z");
  assert.deepEqual([shopOf("phone"), shopOf("default")], ["/?sku=phone&lang=zh#buyer=x.y.z", "/?lang=zh#buyer=x.y.z"]);
  assert.equal(shopOf("phone", "phone~1"), "/?sku=phone&lang=zh#buyer=x.y.z&hold=phone~1");
  assert.equal(linkOf("phone~1~aa"), "http://shop.test/shop/order?id=phone%7E1%7Eaa&lang=zh"); // for anybody, so without the token
  assert.equal(homeOf(), "/?lang=zh#buyer=x.y.z");
});

test("an order is known, gone, or nobody can say", async () => {
  answer({ json: { quantity: 1 } });
  assert.deepEqual(await lookUp("phone~1~aa"), { quantity: 1 });
  for (const gone of [GONE, { status: 422, json: { type: "urn:seckill:invalid-request" } }]) {
    answer(gone);
    assert.deepEqual(await lookUp("phone~1~aa"), { gone: true });
  }
  for (const away of [{ status: 0 }, { status: 503, json: {} }, { status: 404, body: "a proxy's" }, { status: 404, json: {} }]) {
    answer(away);
    assert.equal(await lookUp("phone~1~aa"), null);
  }
  const requests = answer(GONE);
  assert.deepEqual(await lookUp("no order's number"), { gone: true });
  assert.deepEqual(requests, []);
  await lookUp("phone~1~aa", "holds");
  assert.deepEqual(requests.map(({ path }) => path), ["/holds/phone~1~aa"]);
});

test("orders are kept newest first, fifty at most, each with its buyer", () => {
  let changes = 0;
  const orders = ordersOf("phone", () => (changes += 1));
  for (let number = 1; number <= 51; number += 1) orders.add(`phone~${number}~aa`, "ann", 1);
  assert.deepEqual([orders.all().length, orders.all()[0].order, orders.all().at(-1).order], [50, "phone~51~aa", "phone~2~aa"]);
  assert.deepEqual([orders.all()[0].by, orders.all()[0].gone, changes], ["ann", false, 51]);
  assert.deepEqual(ordersOf("book", () => {}).all(), []);
  const { at } = orders.all().at(-1);
  orders.add("phone~2~aa", "ann", 1);
  assert.deepEqual([orders.all().length, orders.all()[0].order, orders.all()[0].at], [50, "phone~2~aa", at]);
});

test("a purchase in another tab is told", () => {
  let changes = 0;
  ordersOf("phone", () => (changes += 1));
  dispatchEvent(new Event("storage"));
  assert.equal(changes, 1);
});

test("orders are asked about when nothing was heard of them for a minute, or at once after a new sale", async (t) => {
  const orders = ordersOf("phone", () => {});
  orders.add("phone~1~aa", "ann", 1);
  const requests = answer(GONE);
  await orders.check();
  assert.deepEqual(requests, []);
  const now = Date.now();
  t.mock.method(Date, "now", () => now + 61_000);
  await orders.check();
  assert.deepEqual([requests.length, orders.all()[0].gone], [1, true]);
  t.mock.method(Date, "now", () => now + 600_000);
  await orders.check(); // one that is gone seldom comes back
  assert.equal(requests.length, 1);
  await orders.check(true);
  assert.equal(requests.length, 2);
});

test("until somebody can say, orders are what they were; it asks again", async () => {
  const orders = ordersOf("phone", () => {});
  orders.add("phone~1~aa", "ann", 1);
  answer({ status: 503, json: {} });
  await orders.check(true);
  assert.equal(orders.all()[0].gone, false);
  answer(GONE);
  assert.equal(await elapse(), 15_000);
  assert.equal(orders.all()[0].gone, true);
  assert.deepEqual(timers, []);
});

test("while nobody can say it asks less and less often, and then no more", async () => {
  const orders = ordersOf("phone", () => {});
  orders.add("phone~1~aa", "ann", 1);
  answer({ status: 503, json: {} });
  await orders.check(true);
  const pauses = [];
  while (timers.length > 0) pauses.push(await elapse());
  assert.deepEqual(pauses, [15_000, 30_000, 60_000, 120_000, 240_000, 480_000]);
});

test("another sale has all orders asked about, once, and what others do has none", async () => {
  const orders = ordersOf("phone", () => {});
  orders.add("phone~1~aa", "ann", 2);
  const requests = answer(GONE);
  for (const sale of ["s1", "s1", null]) orders.belongTo(sale);
  while (timers.length > 0) await elapse();
  assert.equal(requests.length, 1);
  assert.deepEqual([orders.all()[0].gone, orders.all()[0].quantity], [true, 2]);
  ordersOf("phone", () => {}).belongTo("s2"); // the page was loaded again meanwhile
  while (timers.length > 0) await elapse();
  assert.equal(requests.length, 2);
});

test("a new sale during a check has all orders asked about again", async () => {
  const orders = ordersOf("phone", () => {});
  orders.add("phone~1~aa", "ann", 1);
  const requests = answer({ json: {} }, GONE);
  orders.check(true);
  orders.check(true);
  for (let turn = 0; turn < 5; turn += 1) await settle();
  assert.deepEqual([requests.length, orders.all()[0].gone], [2, true]);
});

test("how an order stood is kept: one that was given back is none of the buyer's any more", async () => {
  const orders = ordersOf("phone", () => {});
  orders.add("phone~1~aa", "ann", 1);
  assert.equal(orders.all()[0].state, null);
  answer({ json: { quantity: 1, state: "refunded" } });
  await orders.check(true);
  assert.deepEqual([orders.all()[0].state, orders.all()[0].by], ["refunded", "ann"]);
});
