// How a hold stands for its buyer.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { anew } from "./stand_in.mjs";
import { kindOf } from "./static/hold.js";

beforeEach(anew);

test("a hold is what the service says, and only the end of its time is read from the clock", () => {
  const held = { state: "held", pay_by: 100, extended: false, refunds_due: [] };
  const kinds = [held, { ...held, extended: true }].flatMap((view) => [99, 100].map((now) => kindOf(view, now)));
  assert.deepEqual(kinds, ["held", "late", "paying", "late"]);
  assert.deepEqual([null, { state: "gone" }].map((view) => kindOf(view, 0)), ["none", "none"]);
  const ended = ["confirmed", "expired", "cancelled", "refunded"].map((state) => ({ ...held, state }));
  assert.deepEqual(ended.map((view) => kindOf(view, 0)), ["paid", "expired", "cancelled", "refunded"]);
  const owed = ended.slice(0, 3).map((view) => kindOf({ ...view, refunds_due: ["p"] }, 0));
  assert.deepEqual(owed, ["paid_twice", "refund_due", "refund_due"]);
});
