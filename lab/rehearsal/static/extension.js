// What the lab adds to the control room: the guided start, rush, pause of the holder, and the story of what happens then.

import { saleState, wire } from "./commands.js";
import { texts as room } from "./control_texts.js";
import { part, write } from "./dom.js";
import { number, seconds } from "./figure.js";
import { texts } from "./rehearsal_texts.js";
import { explain, furnish } from "./room.js";
import { command } from "./session.js";
import { beginStory, dropStory, showStory, wireStory, wrongSince } from "./story.js";

const BEYOND_LEASE_S = 3; // so long a paused holder stands still after its lease: time to see what happens
const RUSH_S = 20; // beyond the time over which its buyers come
const SHOWN_BUYERS = 240; // those of the guided start: some come before the pause, and some after it
const SHOWN_S = { before: 2.5, after: 5 };

const STORY = `<section class="card story" id="story" role="status" aria-atomic="false" aria-labelledby="story-title" hidden>
  <div class="title">
    <h2 id="story-title" data-explain="fence"><span data-text="story"></span></h2>
    <button type="button" class="plain" id="story-close" data-text="close"></button>
  </div>
  <ol id="story-steps"></ol>
</section>`;
const BUTTONS = `<section class="card commands" id="rehearsal" aria-labelledby="rehearsal-title">
  <h2 id="rehearsal-title" data-text="rehearsal"></h2>
  <form id="guide" aria-labelledby="rehearsal-title">
    <p class="small" id="guide-hint"></p>
    <button type="submit" aria-describedby="guide-hint" data-text="showMe"></button>
    <output id="guide-said"></output>
  </form>
  <form id="rush" aria-labelledby="rush-title">
    <h3 id="rush-title" data-text="rush"></h3>
    <div class="fields">
      <label><span data-text="buyers"></span><input id="buyers" type="number" min="1" max="20000" step="1" value="500" required></label>
      <label><span data-text="over"></span><input id="over" type="number" min="0" max="300" step="any" value="10" required></label>
      <button type="submit" class="plain" data-text="send"></button>
    </div>
    <output id="rush-said"></output>
  </form>
  <form id="pause" aria-labelledby="pause-title">
    <h3 id="pause-title" data-text="pause"></h3>
    <p class="small" id="pause-hint"></p>
    <div class="fields">
      <label><span data-text="pauseFor"></span><input id="pause-for" type="number" min="1" max="120" step="any" required></label>
      <button type="submit" class="plain" aria-describedby="pause-hint" data-text="pauseIt"></button>
    </div>
    <output id="pause-said"></output>
    <div class="offer" id="nobody-buys" role="status" hidden>
      <p data-text="nobodyBuys"></p>
      <button type="button" class="plain" id="send-rush" data-text="sendRush"></button>
    </div>
  </form>
</section>`;

let seen = 0; // when the last picture was
let last = null; // the last picture

const about = (sku) => `?sku=${encodeURIComponent(sku)}`;

const fragment = (html) => document.createRange().createContextualFragment(html);

/** Add to the page of an item. */
export function enter(sku) {
  const style = document.createElement("link");
  style.rel = "stylesheet";
  style.href = new URL("./rehearsal.css", import.meta.url).href;
  document.head.append(style);
  const [lanes, side] = [document.querySelector(".lanes"), document.querySelector(".side")];
  lanes.after(fragment(STORY));
  side.prepend(fragment(BUTTONS));
  furnish(sku);
  explain(part("story"));
  wire(part("guide"), () => show(sku));
  wire(part("rush"), () => rush(sku));
  wire(part("pause"), () => pause(sku));
  part("send-rush").addEventListener("click", () => part("rush").requestSubmit());
  wireStory();
}

/** Show a picture; the pause of which there is a story is returned, or null. */
export function showExtension(picture) {
  seen = picture.at;
  last = picture;
  part("guide").hidden = picture.lock.keeps_apart !== "all processes";
  write(part("guide-hint"), texts.showHint(picture.guarded) + showRestock(picture));
  write(part("pause-hint"), texts.pauseHint(picture.guarded));
  if (part("pause-for").value === "") part("pause-for").value = pauseFor(picture.lock);
  part("nobody-buys").hidden = !picture.instances.some(({ pausing, waiting }) => pausing && waiting === 0);
  return showStory(picture);
}

export { wrongSince };

async function rush(sku) {
  const wish = { buyers: part("buyers").valueAsNumber, over_s: part("over").valueAsNumber || 0 };
  const { answer, problem } = await command("POST", `/control/rush${about(sku)}`, wish);
  if (problem !== undefined) return { problem };
  const since = seen;
  const there = (events) => events.filter(({ kind, at }) => kind === "rush" && at > since).length >= answer.instances.length;
  const over = ({ at, events }) => there(events) || at > since + wish.over_s + RUSH_S;
  return { over, answer: texts.rushed(number(wish.buyers), answer.instances.join(room.and)) };
}

/** The guided start: buyers come, the holder is paused, and the story of its pause tells what happens. */
async function show(sku) {
  const { level, lock, instances } = last;
  if (level !== null && saleState(level, seen) !== "on") return { problem: texts.showNeedsSale };
  const forS = pauseFor(lock);
  const wish = { buyers: SHOWN_BUYERS, over_s: SHOWN_S.before + forS + SHOWN_S.after };
  if (level === null || level.stock < wish.buyers) {
    const { problem } = await command("PUT", `/stock${about(sku)}`, { stock: wish.buyers });
    if (problem !== undefined) return { problem };
  }
  beginStory(seen, { buyers: wish.buyers, instances: instances.filter(({ silent }) => !silent).map(({ instance }) => instance) });
  let { problem } = await command("POST", `/control/rush${about(sku)}`, wish);
  if (problem === undefined) {
    await new Promise((resolve) => setTimeout(resolve, SHOWN_S.before * 1_000));
    ({ problem } = await command("POST", `/control/pause${about(sku)}`, { for_s: forS }));
  }
  if (problem !== undefined) dropStory();
  return { problem, answer: "" };
}

/** What the guided start does to the stock, as it says before. */
function showRestock({ level }) {
  const few = level === null || level.stock < SHOWN_BUYERS;
  return ` ${few ? texts.showRestocks(number(SHOWN_BUYERS), number(level?.stock ?? 0)) : texts.showSells(number(SHOWN_BUYERS))}`;
}

const pauseFor = ({ ttl_s }) => Math.ceil(ttl_s) + BEYOND_LEASE_S;

async function pause(sku) {
  const wish = { for_s: part("pause-for").valueAsNumber };
  const { answer, problem } = await command("POST", `/control/pause${about(sku)}`, wish);
  if (answer) beginStory(seen);
  const since = seen;
  const over = ({ events, instances }) =>
    events.some(({ kind, instance, at }) => kind === "paused" && instance === answer.instance && at > since) &&
    instances.every(({ paused_s }) => paused_s === 0);
  return { problem, over: answer && over, answer: answer && texts.pausing(answer.instance, seconds(answer.for_s)) };
}
