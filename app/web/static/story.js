// The story of a pause, step by step. It stays until somebody closes it.

import { texts } from "./control_texts.js";
import { make, part, write } from "./dom.js";
import { moment, number } from "./figure.js";

const CLOSED = "seckill-story-closed";
const OLD_S = 120;
const STEPS = ["paused", "ran_out", "overtaken", "woke", "end"];

let told = null; // `{ id, instance, token, steps }`: of the last pause

/** Show how far the story of the last pause has come. */
export function showStory(picture) {
  const [pause] = picture.events.filter(({ kind, at }) => kind === "paused" && at > picture.at - OLD_S);
  if (pause && pause.id !== told?.id && pause.at > (told?.at ?? 0)) {
    told = { id: pause.id, at: pause.at, instance: pause.instance, token: String(pause.facts.token), steps: new Map([["paused", pause]]) };
  }
  if (told === null || sessionStorage.getItem(CLOSED) === told.id) {
    part("story").hidden = true;
    return;
  }
  for (const event of picture.events) {
    const step = stepOf(event);
    if (step && !told.steps.has(step)) told.steps.set(step, event);
  }
  part("story").hidden = false;
  tell(picture);
}

function stepOf({ kind, instance, facts }) {
  if ((facts.of ?? instance) !== told.instance || String(facts.token) !== told.token) return null;
  if (kind === "fenced" || kind === "wrote") return "end";
  return STEPS.includes(kind) ? kind : null;
}

function tell({ level, guarded }) {
  const { instance, token, steps } = told;
  const overtaken = steps.get("overtaken");
  const end = steps.get("end");
  const story = texts.story;
  const lines = [
    story.paused(instance, token, steps.get("paused").facts.for_s),
    steps.has("ran_out") ? story.ranOut : null,
    overtaken ? story.overtaken(overtaken.facts.by, overtaken.facts.by_token) : null,
    steps.has("woke") ? story.woke(instance, token) : null,
    end ? ending(end, overtaken, level, story) : null,
  ];
  const result = end === undefined ? "open" : end.kind === "fenced" ? "good" : overtaken ? "bad" : "good";
  part("story").dataset.result = result;
  const when = [...STEPS].map((step) => steps.get(step)?.at);
  const shown = lines.flatMap((line, place) => (line === null ? [] : [{ line, at: when[place] }]));
  const list = part("story-steps");
  while (list.children.length > shown.length) list.lastElementChild.remove();
  shown.forEach(({ line, at }, place) => {
    if (!list.children[place]) list.append(make("li", "", make("span", "words"), make("time", "")));
    write(list.children[place].firstChild, line);
    write(list.children[place].lastChild, moment(at));
  });
  write(part("story-next"), end === undefined ? next(steps, guarded, story) : "");
}

function ending(end, overtaken, level, story) {
  if (end.kind === "fenced") return story.refused;
  if (!overtaken) return story.stillItsOwn;
  const tooMany = level === null || level.initial === null ? 0 : level.stock + level.lucky - level.initial;
  return tooMany > 0 ? story.oversold(number(tooMany)) : story.taken;
}

function next(steps, guarded, story) {
  if (!steps.has("ran_out")) return story.next.lease;
  if (!steps.has("overtaken")) return story.next.heir;
  return guarded ? story.next.refusal : story.next.noGuard;
}

/** Make its button work. */
export function wireStory() {
  part("story-close").addEventListener("click", () => {
    sessionStorage.setItem(CLOSED, told.id);
    part("story").hidden = true;
  });
}
