// The story of a pause, step by step; a guided start begins it with its buyers. It stays until somebody closes it.

import { texts as room } from "./control_texts.js";
import { make, part, write } from "./dom.js";
import { moment, number, seconds } from "./figure.js";
import { texts } from "./rehearsal_texts.js";

const CLOSED = "seckill-story-closed";
const OLD_S = 120;
const STEPS = ["buyers", "paused", "ran_out", "overtaken", "end"];

let told = null; // `{ id, at, instance, token, steps }`: of the last pause; without an id it has yet to come
let awaited = Infinity; // from this moment on a story is one that a button here has made: its steps are brought into sight

/** Begin the story of a pause that this page is about to make; `buyers` are known if it sends them. */
export function beginStory(at, buyers = null) {
  awaited = at;
  if (buyers !== null) told = { id: null, at, steps: new Map([["buyers", { at, facts: buyers }]]) };
}

/** The pause does not come. */
export function dropStory() {
  awaited = Infinity;
  if (told?.id === null) told = null;
}

/** When a write was taken that should not have been, by the last story: an earlier verdict knows nothing of it. */
export function wrongSince() {
  const [end, over] = ["end", "overtaken"].map((step) => told?.steps.get(step));
  return over && end?.kind === "wrote" ? end.at : -Infinity;
}

/** Show how far the story of the last pause has come; what is told of is returned: `{ id, at, for_s }`, or null. */
export function showStory(picture) {
  const [pause] = picture.events.filter(({ kind, at }) => kind === "paused" && at > picture.at - OLD_S);
  if (pause && pause.id !== told?.id && pause.at > (told?.at ?? 0)) {
    const begun = told?.id === null ? told.steps : [];
    const steps = new Map([...begun, ["paused", pause]]);
    told = { id: pause.id, at: pause.at, instance: pause.instance, token: String(pause.facts.token), steps };
  }
  const hidden = told === null || (told.id !== null && sessionStorage.getItem(CLOSED) === told.id);
  part("story").hidden = hidden;
  if (hidden) return null;
  for (const event of picture.events) {
    const step = stepOf(event);
    if (step && (!told.steps.has(step) || told.steps.get(step).kind === "woke")) told.steps.set(step, event);
  }
  tell(picture);
  return told.id === null ? null : { id: told.id, at: told.at, for_s: told.steps.get("paused").facts.for_s };
}

function stepOf({ kind, instance, facts }) {
  if ((facts.of ?? instance) !== told.instance || String(facts.token) !== told.token) return null;
  if (["woke", "fenced", "wrote"].includes(kind)) return "end";
  return STEPS.includes(kind) ? kind : null;
}

/** The steps of a story so far as sentences, how it ended ("open", "good", "bad"), and whether more is to come. */
export function tale({ instance, token, steps }, { level, lock }) {
  const { sentences } = texts.story;
  const [buyers, pause, over, end] = ["buyers", "paused", "overtaken", "end"].map((step) => steps.get(step));
  const words = {
    buyers: buyers && sentences.buyers(number(buyers.facts.buyers), buyers.facts.instances.join(room.and)),
    paused: pause && sentences.paused(instance, token, seconds(pause.facts.for_s)),
    ran_out: steps.has("ran_out") && sentences.ranOut(instance, seconds(lock.ttl_s)),
    overtaken: over && sentences.overtaken(over.facts.by, over.facts.by_token),
    end: end && `${sentences.woke(instance, token)} ${ending(end, over, level, sentences)}`.trim(),
  };
  const ended = end !== undefined && end.kind !== "woke";
  const result = !ended ? "open" : end.kind === "wrote" && over ? "bad" : "good";
  const known = STEPS.filter((step) => steps.has(step) || (!ended && step !== "buyers"));
  return { result, lines: known.map((step) => ({ step, at: steps.get(step)?.at, words: words[step] || "" })) };
}

function ending(end, overtaken, level, sentences) {
  if (end.kind === "woke") return "";
  if (end.kind === "fenced") return sentences.refused;
  if (!overtaken) return sentences.stillItsOwn;
  const tooMany = level === null || level.initial === null ? 0 : level.stock + (level.held ?? 0) + level.lucky - level.initial;
  return tooMany > 0 ? sentences.oversold(number(tooMany)) : sentences.taken;
}

function tell(picture) {
  const { result, lines } = tale(told, picture);
  part("story").dataset.result = result;
  const list = part("story-steps");
  const before = list.textContent;
  while (list.children.length > lines.length) list.lastElementChild.remove();
  lines.forEach(({ step, at, words }, place) => {
    if (!list.children[place]) list.append(make("li", "", make("b", ""), " ", make("span", "words"), " ", make("time", "")));
    const made = list.children[place];
    const [title, sentence, time] = made.children;
    made.dataset.come = words !== "";
    write(title, texts.story.titles[step]);
    write(sentence, words);
    write(time, at === undefined ? "" : moment(at));
  });
  if (told.at < awaited) return;
  if (list.textContent !== before) part("story").scrollIntoView({ block: "nearest" });
  if (result !== "open") awaited = Infinity;
}

/** Make its button work; a reader who scrolls is left where they are. */
export function wireStory() {
  for (const own of ["wheel", "touchmove"]) addEventListener(own, () => (awaited = Infinity), { passive: true });
  part("story-close").addEventListener("click", () => {
    if (told.id === null) told = null;
    else sessionStorage.setItem(CLOSED, told.id);
    part("story").hidden = true;
  });
}
