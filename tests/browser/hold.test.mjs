// How a hold stands for its buyer.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { answer, anew, elapse, settle, timers, visit } from "./stand_in.mjs";
import { backTo, holdOf, kindOf, pauseOf } from "./static/hold.js";
import { browser, tab } from "./static/keep.js";

beforeEach(anew);

const SECOND = { state: "second", waits: false, refunds: [{ state: "due" }] };

test("a hold is what the service says, and only the end of its time is read from the clock", () => {
  const held = { state: "held", pay_by: 100, extended: false, payments: [] };
  const kinds = [held, { ...held, extended: true }].flatMap((view) => [99, 100].map((now) => kindOf(view, now)));
  assert.deepEqual(kinds, ["held", "late", "paying", "late"]);
  assert.deepEqual([null, { state: "gone" }].map((view) => kindOf(view, 0)), ["none", "none"]);
  const ended = ["confirmed", "expired", "cancelled", "refunded"].map((state) => ({ ...held, state }));
  assert.deepEqual(ended.map((view) => kindOf(view, 0)), ["paid", "expired", "cancelled", "refunded"]);
  const owed = ended.slice(0, 3).map((view) => kindOf({ ...view, payments: [SECOND] }, 0));
  assert.deepEqual(owed, ["paid_twice", "refund_due", "refund_due"]);
  const [given, part] = [{ ...SECOND, refunds: [{ state: "given" }] }, { ...SECOND, state: "counts" }];
  assert.deepEqual([given, part].map((one) => kindOf({ ...ended[0], payments: [one] }, 0)), ["paid", "paid"]);
  assert.equal(kindOf({ ...held, payments: [{ state: "wrong", waits: true, refunds: [] }] }, 99), "mismatch");
});

test("after the buyer went to pay, a hold that has run out is waited for, and never said to have cost nothing", () => {
  const over = { state: "expired", pay_by: 100, extended: true, payments: [] };
  assert.deepEqual([100, 279, 280].map((now) => kindOf(over, now)), ["awaited", "awaited", "unpaid"]);
  assert.equal(kindOf({ ...over, payments: [SECOND] }, 101), "refund_due");
  assert.equal(kindOf({ ...over, extended: false }, 101), "expired");
});

test("it is looked for as long as something may come, less and less often, and then no more", () => {
  const held = { state: "held", pay_by: 100, extended: false };
  assert.deepEqual([0, 95, 100, 280, 3_701].map((now) => pauseOf(held, now)), [10_000, 5_000, 2_000, 30_000, null]);
  const over = { ...held, state: "expired", extended: true };
  assert.deepEqual([101, 300, 3_701].map((now) => pauseOf(over, now)), [2_000, 30_000, null]);
  for (const end of [{ state: "expired", extended: false }, { state: "confirmed" }, { state: "refunded" }, { state: "gone" }]) {
    assert.equal(pauseOf({ ...over, ...end }, 101), null);
  }
});

test("a place in line is kept and looked at until it is this buyer's turn, also while the page is hidden", async () => {
  const { hold } = kept(of("ida"));
  hold.keep({ id: "phone~1~aa", state: "waiting", place: { number: 7, held: 120 }, now: 5_000 });
  assert.deepEqual([hold.kind, kept(of("ida")).hold.kind, pauseOf(hold.view, hold.now)], ["in_line", "asking", 10_000]);
  document.hidden = true;
  const requests = answer({ json: { id: "phone~1~aa", state: "held", pay_by: 5_100, now: 5_040 } });
  await elapse();
  document.hidden = false;
  assert.deepEqual([requests.length, hold.kind], [1, "offered"]);
  const later = kept(of("ida")).hold;
  await later.ask();
  assert.equal(later.kind, "offered");
  hold.keep({ id: "phone~2~bb", state: "held", pay_by: 5_100, now: 5_040 });
  assert.equal(hold.kind, "held"); // another one, for which nobody waited
  timers.length = 0;
});

test("how waiting has ended is told once, however late the buyer comes back", async () => {
  for (const [end, kind, then] of [[{ state: "cancelled", pay_by: null }, "left", "none"], [{ state: "expired", pay_by: 100 }, "expired", "none"]]) {
    const { hold } = kept(of("joe"));
    hold.keep({ id: "phone~1~aa", state: "waiting", now: 0 });
    answer({ json: { id: "phone~1~aa", now: 50_000, payments: [], ...end } });
    for (const found of [kind, then]) {
      const later = kept(of("joe")).hold;
      await later.ask();
      assert.equal(later.kind, found);
    }
  }
  assert.equal(kindOf({ state: "cancelled", pay_by: 100 }, 0), "cancelled");
  timers.length = 0;
});

test("while nobody answers it is asked for less and less often", async () => {
  const { hold } = kept(of("fay"));
  hold.keep({ id: "phone~1~aa", state: "held", extended: true, pay_by: 100, now: 0 });
  answer({ status: 0 });
  const pauses = [];
  for (let turn = 0; turn < 8; turn += 1) pauses.push(await elapse());
  assert.ok(pauses[0] < 2_300 && pauses[3] > 16_000 && pauses[7] >= 60_000 && pauses[7] < 68_000, String(pauses));
  timers.length = 0;
});

test("a browser that keeps nothing learns from the way back which hold was paid", async () => {
  visit("/?sku=phone", "en-GB");
  assert.equal(backTo("phone~7~gg"), "http://shop.test/?sku=phone#hold=phone~7~gg");
  tab.remove("given");
  browser.remove("buyer");
  const { hold, paid } = kept("/?sku=phone#hold=phone~7~gg");
  assert.deepEqual([hold.id(), hold.kind, location.hash], ["phone~7~gg", "asking", ""]);
  answer({ json: { id: "phone~7~gg", state: "confirmed", pay_by: 100, now: 50 } });
  await hold.ask();
  assert.deepEqual([paid, hold.kind], [["phone~7~gg"], "paid"]);
  assert.equal(kept("/#hold=book~1~aa").hold.id(), "phone~7~gg"); // one of another item is none of this
  hold.keep({ id: "phone~8~hh", state: "waiting", now: 60 });
  assert.equal(kept("/#hold=phone~9~zz").hold.id(), "phone~8~hh"); // one that may still be paid stays
  hold.keep({ id: "phone~8~hh", state: "cancelled", pay_by: null, now: 70 });
  const other = kept(`${of("kim")}&hold=phone~9~zz`).hold;
  assert.deepEqual([other.id(), location.hash, kept("/#hold=phone~9~zz").hold.id()], ["phone~9~zz", "", "phone~9~zz"]);
  timers.length = 0;
});

/** The kept hold of the buyer at an address, and what it calls. */
function kept(address = "/") {
  visit(address, "en-GB");
  const paid = [];
  return { paid, hold: holdOf("phone", { onChange: () => {}, onPaid: (order) => paid.push(order) }) };
}

const of = (name) => `/#buyer=x.${Buffer.from(JSON.stringify({ sub: name })).toString("base64url")}.y`;

test("an order that was paid is told, however long ago that was; money that comes back is shown", async () => {
  const { hold, paid } = kept(of("ann"));
  hold.keep({ id: "phone~1~aa", state: "held", pay_by: 100, now: 0 });
  for (const [payments, kind] of [[[], "none"], [[SECOND], "paid_twice"]]) {
    const later = kept(of("ann"));
    answer({ json: { id: "phone~1~aa", state: "confirmed", pay_by: 100, now: 8_000, payments } });
    await later.hold.ask();
    assert.deepEqual([later.paid, later.hold.kind], [["phone~1~aa"], kind]);
  }
  assert.deepEqual(paid, []);
});

test("a hold is its buyer's: another one of the same browser has none, and keeps their own", async () => {
  const ann = kept(of("ann")).hold;
  ann.keep({ id: "phone~1~aa", state: "held", pay_by: 100, now: 0 });
  const bob = kept(of("bob")).hold;
  const requests = answer({ json: { id: "phone~1~aa", state: "held", pay_by: 100, now: 0 } });
  assert.deepEqual([bob.id(), bob.kind, await bob.ask()], [null, "none", null]);
  assert.deepEqual(requests, []);
  bob.keep({ id: "phone~2~bb", state: "held", pay_by: 100, now: 0 });
  assert.equal(kept(of("ann")).hold.id(), "phone~1~aa");
  assert.equal(browser.get("hold.phone.bob").id, "phone~2~bb");
  await settle();
  timers.length = 0;
});

test("after the page was loaded again, nobody is let to pay twice before the service has said how a hold stands", async () => {
  const now = Date.now() / 1_000;
  const { hold } = kept(of("eve"));
  const view = { id: "phone~1~aa", pay_by: now - 5, now, payments: [], extended: true };
  hold.keep({ ...view, state: "held", extended: false });
  for (const [said, kind] of [[{ state: "held" }, "asking"], [{ state: "expired" }, "asking"], [{ state: "expired", extended: false }, "none"]]) {
    answer({ json: { ...view, ...said } });
    await hold.ask();
    const later = kept(of("eve")).hold;
    assert.equal(later.kind, kind);
    answer({ status: 503, json: {} });
    assert.equal(await later.ask(), null);
    assert.equal(later.kind, kind);
  }
  hold.keep({ ...view, state: "expired", pay_by: now - 4_000 });
  assert.equal(kept(of("eve")).hold.kind, "none"); // it ended long ago
  await settle();
  timers.length = 0;
});

test("a hold's time is the store's, which every answer about it tells", async () => {
  const { hold } = kept(of("gil"));
  hold.keep({ id: "phone~1~aa", state: "held", pay_by: 5_100, now: 5_000 });
  assert.ok(Math.abs(hold.now - 5_000) < 5, String(hold.now));
  answer({ json: { id: "phone~1~aa", state: "held", pay_by: 5_100, now: 5_040 } });
  await hold.ask();
  assert.ok(Math.abs(hold.now - 5_040) < 5, String(hold.now));
  timers.length = 0;
});
