// When a page asks for the report, which may take long.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { answer, anew, define, elapse, settle } from "./stand_in.mjs";

anew();
define("document", Object.assign(new EventTarget(), { hidden: false, getElementById: () => null, documentElement: {} }));
const { follow } = await import("./static/report.js");

const REPORT = { at: 1 };

beforeEach(anew);

test("the longer a report takes, the longer a page leaves the service in peace", async (t) => {
  const times = [0, 70_000];
  t.mock.method(performance, "now", () => times.shift() ?? 70_000);
  answer({ json: REPORT });
  const shown = [];
  follow(() => "", (report) => shown.push(report));
  await settle();
  assert.deepEqual(shown, [REPORT]);
  assert.equal(await elapse(), 20 * 70_000);
});

test("a page that gave up asks again soon, for the report that is still being made", async (t) => {
  const times = [0];
  t.mock.method(performance, "now", () => times.shift() ?? 60_000);
  const requests = answer({ status: 0 }, { json: REPORT });
  const shown = [];
  follow(() => "", (report) => shown.push(report));
  await settle();
  assert.equal(await elapse(), 10_000);
  assert.deepEqual([requests.length, shown], [2, [REPORT]]);
});
