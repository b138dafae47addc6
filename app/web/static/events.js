// The unusual events, in words.

import { dot } from "./colour.js";
import { texts } from "./control_texts.js";
import { keyed, make, part, write } from "./dom.js";
import { age, moment, number } from "./figure.js";

const OLD_S = 300;
const SAY_EVERY_MS = 5_000; // to screen readers: the last event, now and then

let newest = null; // when the newest known event was; null before the first picture
let now = 0;
let unsaid = [];
let timer = null;

/** An event as a sentence. */
function sentence({ instance, kind, facts }) {
  const words = texts.events[kind];
  return words ? words(instance, facts) : `${instance}: ${kind} ${JSON.stringify(facts)}`;
}

function row({ instance, at, kind, facts }) {
  const when = make("time", "");
  when.dateTime = new Date(at * 1_000).toISOString();
  when.title = moment(at);
  const made = make("li", "fresh", when, dot(facts.of && !["store", "lock"].includes(facts.of) ? facts.of : instance), make("span", "words"), make("span", "times"));
  made.dataset.kind = kind;
  return made;
}

function fill(made, event) {
  const [when, , words, times] = made.children;
  write(when, age(Math.max(0, now - event.at)));
  made.dataset.old = now - event.at > OLD_S;
  write(words, sentence(event));
  write(times, event.times > 1 ? texts.times(number(event.times)) : "");
}

const rows = keyed(part("events"), ({ id, at }) => `${id}/${at}`, row, fill);

/** Show the events, newest first, and announce the new ones. */
export function showEvents({ at: moment, events }) {
  now = moment;
  part("no-events").hidden = events.length > 0;
  rows(events);
  if (newest !== null) unsaid.push(...events.filter(({ at }) => at > newest).reverse());
  newest = Math.max(newest ?? 0, ...events.map(({ at }) => at));
  if (unsaid.length > 0 && timer === null) say();
}

function say() {
  const last = sentence(unsaid.at(-1));
  write(part("news"), unsaid.length > 1 ? texts.lastOf(number(unsaid.length), last) : last);
  unsaid = [];
  timer = setTimeout(() => {
    timer = null;
    if (unsaid.length > 0) say();
  }, SAY_EVERY_MS);
}
