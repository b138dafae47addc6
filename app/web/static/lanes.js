// The lock's holders over time: the known grants of the last two minutes, in a lane for each instance.

import { texts } from "./control_texts.js";
import { part, write } from "./dom.js";
import { milliseconds, moment, number, seconds } from "./figure.js";
import { LanePlot } from "./lane_plot.js";

const KEPT_S = 120;
const SPAN_S = 60; // how much is shown
const KINDS = new Set(["overtaken", "fenced", "wrote", "came", "left", "silent", "back"]);

const grants = new Map(); // by instance and token
const stills = new Map(); // the same key: `{ from, until }`, as long as it stood still
const leases = new Map(); // by token: `{ lane, from, until }`
const lost = new Map(); // the same key: `{ from, until }`, as long as its holder believed in what was over
const happened = new Map(); // by id: the marked events
let lanes = [];
let now = 0;
let close = null; // `{ id, range }`: the pause that is looked at closely
let chosen = false; // somebody has chosen what is shown
let left = null; // the id of one that somebody has looked away from
let plot = null;

/** Remember grants of before this page was opened. */
export function recall({ grants: before }) {
  before.forEach(keep);
}

function keep({ instance, token, at, held_ms, purchases, units, waited_ms }) {
  const key = `${instance}/${token}`;
  const label = purchases ? texts.barLabel(number(purchases), number(units)) : "";
  grants.set(key, { key, lane: instance, token, from: at, until: at + held_ms / 1_000, label, waited: waited_ms, over: true });
}

/** Show a picture: its past, and its present; closely what there is of a pause, `{ id, at, for_s }`. */
export function showLanes(picture, pause) {
  now = picture.at;
  const range = pause === null || pause.id === left ? null : closeUp(pause, picture.lock.ttl_s);
  close = range && { id: pause.id, range };
  picture.grants.forEach(keep);
  for (const { instance, token, since, paused_s } of picture.instances) {
    if (token === null || since === null) continue;
    const key = `${instance}/${token}`;
    if (!grants.get(key)?.over) grants.set(key, { key, lane: instance, token, from: since, until: now, label: "", waited: null, over: false });
    if (paused_s > 0 && stills.has(key)) stills.get(key).until = now;
  }
  for (const { instance, token, holds, ttl_left_s } of picture.queue) {
    const grant = grants.get(`${instance}/${token}`);
    if (!holds || ttl_left_s === null || grant === undefined) continue;
    leases.set(token, { lane: instance, from: grant.from, until: now + ttl_left_s });
  }
  for (const event of picture.events) hear(event);
  for (const [token, { lane }] of leases) {
    const key = `${lane}/${token}`;
    if (grants.get(key)?.over && !stills.has(key)) leases.delete(token); // it was given back
  }
  forget();
  const bars = [...grants.values()].map((grant) => ({ ...grant, still: stills.get(grant.key), lost: lost.get(grant.key) }));
  lanes = [...new Set([...picture.instances.map(({ instance }) => instance), ...bars.map(({ lane }) => lane)])].sort();
  const lately = bars.filter(({ from }) => from > now - SPAN_S).length;
  part("lanes-plot").setAttribute("aria-label", texts.lanesNow(lanes.length, number(lately)));
  offerLive();
  plot?.show({
    lanes: lanes.map((instance) => ({ id: instance, name: instance, instance })),
    bars,
    leases: [...leases.values()],
    marks: [...happened.values()],
    bands: [],
  });
}

/** From when to when a pause is looked at closely, with what is before and after it: as long as its story is told. */
export function closeUp({ at, for_s }, ttl_s) {
  return [at - 0.25 * ttl_s, at + Math.max(1.25 * ttl_s, for_s + 0.25 * ttl_s)];
}

function hear({ id, at, instance, kind, facts }) {
  const lane = facts.of ?? instance;
  const key = `${lane}/${facts.token}`;
  if (kind === "paused" && !stills.has(key)) stills.set(key, { from: at, until: Math.min(now, at + facts.for_s) });
  if (kind === "woke" && stills.has(key)) stills.get(key).until = at;
  if (kind === "ran_out" && !lost.has(key)) lost.set(key, { from: at, until: Infinity });
  if (["woke", "lost"].includes(kind) && lost.has(key)) lost.get(key).until = Math.min(lost.get(key).until, at);
  if (KINDS.has(kind)) happened.set(id, { at, kind, lane, to: facts.by });
}

function forget() {
  const since = Math.min(now - KEPT_S, close?.range[0] ?? now);
  for (const known of [grants, stills, leases]) for (const [key, { until }] of known) if (until < since) known.delete(key);
  for (const key of lost.keys()) if (!grants.has(key)) lost.delete(key);
  for (const [id, { at }] of happened) if (at < since) happened.delete(id);
}

/** The marked events of the last two minutes, for the other charts. */
export function marks() {
  return [...happened.values()].filter(({ kind }) => ["overtaken", "fenced", "wrote"].includes(kind));
}

function words({ lane, token, from, until, label, waited, over }) {
  const held = over ? texts.heldThen(milliseconds((until - from) * 1_000)) : texts.heldNow(seconds(Math.round(until - from)));
  const before = waited === null ? "" : texts.waitedFor(milliseconds(waited));
  return [lane, texts.token(token), moment(from), held, label, before].filter(Boolean).join(" · ");
}

/** Make the lanes' buttons and keys work. */
export function wireLanes() {
  const touched = matchMedia("(pointer: coarse)").matches; // no arrow keys, and nothing to point with
  plot = new LanePlot(part("lanes-plot"), {
    whole: () => close?.range ?? [now - SPAN_S, now + SPAN_S / 30],
    moment,
    tell: (bar) => write(part("lanes-said"), bar === null ? (touched ? "" : texts.lanesHint) : words(bar)),
    closer: (range) => {
      chosen = range !== null;
      if (!chosen) [left, close] = [close?.id ?? left, null];
      offerLive();
    },
  });
  part("lanes-live").addEventListener("click", () => plot.back());
}

function offerLive() {
  part("lanes-live").hidden = !chosen && close === null;
}
