// How a page follows the level, and the service's clock.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { answer, anew, define, elapse, settle, timers } from "./stand_in.mjs";
import { Clock, follow } from "./static/level.js";

const LEVEL = { stock: 5, now: 1_000 };
const REFUSED = { status: 503 };

let streams;

class EventSource {
  static OPEN = 1;
  static CLOSED = 2;
  readyState = 0;

  constructor(path) {
    this.path = path;
    streams.push(this);
  }

  open() {
    this.readyState = EventSource.OPEN;
    this.onopen();
  }

  fail(state) {
    this.readyState = state;
    this.onerror();
  }

  close() {
    this.readyState = EventSource.CLOSED;
  }
}

define("EventSource", EventSource);

beforeEach(() => {
  anew();
  define("document", Object.assign(new EventTarget(), { hidden: false }));
  streams = [];
});

/** Follow an item. `said`: what the page was told, newest last. */
async function followed(more = {}) {
  const said = [];
  const shelf = follow({ path: "/stock?sku=a", live: "/stock/live?sku=a" }, {
    onLevel: (level) => said.push(level.stock),
    onMissing: () => said.push("missing"),
    onConnection: (state) => said.push(state),
    ...more,
  });
  await settle();
  return { said, shelf };
}

function show(hidden) {
  document.hidden = hidden;
  document.dispatchEvent(new Event("visibilitychange"));
  return settle();
}

const around = (ms, expected) => assert.ok(ms >= 0.75 * expected && ms <= 1.25 * expected, `${ms}, not about ${expected}`);

test("of all answers the one with the shortest way sets the clock, until it is doubted", (t) => {
  t.mock.method(performance, "now", () => 10_000);
  const clock = new Clock();
  assert.equal(clock.now, null);
  clock.hear(500, 9_000, 10_000);
  assert.equal(clock.now, 500.5);
  clock.hear(600, 9_800, 10_000);
  assert.equal(clock.now, 600.1);
  clock.hear(700, 9_000, 10_000);
  assert.equal(clock.now, 600.1);
  clock.doubt();
  assert.equal(clock.now, 600.1);
  clock.hear(700, 9_000, 10_000);
  assert.equal(clock.now, 700.5);
  t.mock.method(performance, "now", () => 12_000);
  assert.equal(clock.now, 702.5);
});

test("a page asks once, and is told from then on", async () => {
  const requests = answer({ json: LEVEL });
  const { said, shelf } = await followed();
  assert.deepEqual([requests[0].path, requests[0].cache, streams[0].path], ["/stock?sku=a", "no-store", "/stock/live?sku=a"]);
  assert.deepEqual([said, shelf.isLive()], [[5, "asking"], false]);
  streams[0].open();
  streams[0].onmessage({ data: '{"stock": 4}' });
  assert.deepEqual([said.slice(2), shelf.isLive()], [["live", "live", 4], true]);
  around(await elapse(), 3_000); // it was not live yet when the first question was answered
  assert.equal(streams.length, 1);
  around(timers.at(-1).ms, 60_000);
});

test("an answer that was overtaken by the stream is old", async () => {
  answer({ json: LEVEL });
  const { said, shelf } = await followed();
  streams[0].open();
  const looked = shelf.look();
  streams[0].onmessage({ data: '{"stock": 4}' });
  await looked;
  assert.deepEqual(said.filter((one) => typeof one === "number"), [5, 4]);
});

test("a page that may not listen asks every few seconds, and in a minute whether it may", async (t) => {
  answer({ json: LEVEL });
  const { said } = await followed();
  streams[0].fail(EventSource.CLOSED);
  assert.equal(said.at(-1), "asking");
  around(timers.at(-1).ms, 1_000);
  await elapse();
  around(timers.at(-1).ms, 4_500); // a little later each time, as there is nothing new
  for (let turn = 0; turn < 9; turn += 1) await elapse();
  around(timers.at(-1).ms, 30_000);
  answer({ json: { ...LEVEL, stock: 4, now: 2_000 } });
  await elapse();
  around(timers.at(-1).ms, 3_000);
  assert.equal(streams.length, 1);
  const now = performance.now();
  t.mock.method(performance, "now", () => now + 61_000);
  await elapse();
  assert.equal(streams.length, 2);
});

test("a stream that breaks is lost until it is back, and meanwhile the page asks", async () => {
  answer({ json: LEVEL });
  const { said, shelf } = await followed();
  streams[0].open();
  streams[0].fail(0);
  assert.deepEqual([said.at(-1), shelf.isLive()], ["lost", false]);
  around(timers.at(-1).ms, 1_000);
  streams[0].open();
  assert.equal(said.at(-1), "live");
});

test("while nobody answers the connection is lost and the stream closed; then the page listens again at once", async () => {
  answer({ json: LEVEL });
  const { said } = await followed();
  streams[0].fail(EventSource.CLOSED); // it was told not to listen for a minute
  answer({ status: 0 });
  await elapse();
  assert.equal(said.at(-1), "lost");
  answer({ json: { ...LEVEL, stock: 3 } });
  around(await elapse(), 4_500);
  assert.deepEqual([said.slice(-2), streams.length], [[3, "asking"], 2]);
  streams[1].open();
  answer({ status: 0 });
  await elapse();
  assert.deepEqual([said.at(-1), streams[1].readyState], ["lost", EventSource.CLOSED]);
});

test("an error of the service is no answer, nor is a proxy's refusal, which is waited out", async () => {
  const away = [REFUSED, { status: 429, body: "slow down", headers: { "Retry-After": "20" } }, { status: 403, json: {} }, { body: "<p>hello" }];
  for (const refused of away) {
    answer(refused);
    const { said } = await followed();
    assert.deepEqual([said, streams], [["lost"], []]);
    around(timers.pop().ms, refused.headers ? 20_000 : 3_000);
  }
});

test("an item that does not exist is asked for, seldom in the end, and followed when it comes", async () => {
  for (const json of [{ type: "urn:seckill:unknown-item" }, { type: "urn:seckill:invalid-request" }]) {
    answer({ status: 404, json });
    const { said } = await followed();
    assert.deepEqual([said, streams], [["missing", "asking"], []]);
    for (let turn = 0; turn < 12; turn += 1) await elapse();
    around(timers.at(-1).ms, 300_000);
    said.length = 0;
    answer({ json: LEVEL });
    await elapse();
    assert.deepEqual([said, streams.length], [[5, "asking"], 1]);
    timers.length = streams.length = 0;
  }
});

test("after the sale nobody listens, and it is asked for seldom", async () => {
  answer({ json: LEVEL });
  const { said } = await followed({ isOver: () => true });
  for (let turn = 0; turn < 12; turn += 1) await elapse();
  around(timers.at(-1).ms, 300_000);
  assert.deepEqual([streams, said.at(-1)], [[], "asking"]);
});

test("a page without news for an hour asks for nothing, until somebody is here or a sale is about to start", async (t) => {
  let later = 0;
  const real = performance.now.bind(performance);
  t.mock.method(performance, "now", () => real() + later);
  const requests = answer({ json: LEVEL });
  const { said } = await followed();
  streams[0].open();
  later = 3_601_000;
  await elapse();
  assert.deepEqual([said.at(-1), timers, streams.map(({ readyState }) => readyState)], ["resting", [], [EventSource.CLOSED]]);
  const asked = requests.length;
  dispatchEvent(new Event("pointerdown"));
  await settle();
  assert.deepEqual([requests.length, said.at(-1), streams.length], [asked + 1, "asking", 2]);

  anew();
  answer({ json: LEVEL });
  const before = await followed({ startOf: () => LEVEL.now + 10_000 });
  later += 3_601_000;
  answer({ json: { ...LEVEL, now: LEVEL.now + 3_601, audit: { at: LEVEL.now } } });
  await elapse();
  assert.equal(before.said.at(-1), "resting");
  const pause = timers.at(-1).ms;
  assert.ok(pause > 6_300_000 && pause < 6_400_000, String(pause));
  await elapse();
  assert.equal(before.said.at(-1), "asking");
});

test("a hidden page neither listens nor asks, and looks again when it is seen", async () => {
  const requests = answer({ json: LEVEL });
  await followed();
  streams[0].open();
  await show(true);
  assert.deepEqual([streams[0].readyState, timers], [EventSource.CLOSED, []]);
  await show(false);
  assert.deepEqual([requests.length, streams.length], [2, 2]);
  define("fetch", async () => {
    await show(true); // while it asks
    return new Response(JSON.stringify(LEVEL));
  });
  await show(true);
  await show(false);
  await settle();
  assert.deepEqual([streams.at(-1).readyState, timers], [EventSource.CLOSED, []]);
});

test("a page that slept trusts the next answer's clock, and so does one that was not answered", async (t) => {
  let now = 0;
  t.mock.method(performance, "now", () => now);
  answer({ json: LEVEL });
  const { shelf } = await followed();
  for (const [sleep, wake] of [[() => show(true), () => show(false)], [() => (answer({ status: 0 }), shelf.look()), () => shelf.look()]]) {
    await sleep();
    define("fetch", async () => {
      now += 400; // a long way, which would not count else
      return new Response(JSON.stringify({ ...LEVEL, now: 2_000 }));
    });
    await wake();
    assert.equal(shelf.clock.now, 2_000.2);
  }
});
