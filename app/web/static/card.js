// A card: a contender that holds the lock, waits for it, or believes that it holds it.

import { engrave, nameplate } from "./colour.js";
import { texts } from "./control_texts.js";
import { make, write } from "./dom.js";
import { seconds } from "./figure.js";

const made = new WeakMap();

/** A new card, with nothing on it yet. */
export function card() {
  const parts = { name: nameplate(), role: make("span", "role"), facts: make("p", "facts"), words: make("p", "words") };
  parts.drain = make("div", "drain");
  parts.left = make("p", "left-of-lease");
  parts.lease = make("div", "lease", make("div", "trough", parts.drain), parts.left);
  parts.lease.firstChild.setAttribute("aria-hidden", "true");
  const element = make("li", "place", make("div", "heading", parts.name, parts.role), parts.facts, parts.words, parts.lease);
  made.set(element, parts);
  return element;
}

/** Put a holder or a waiter on a card. `place`: how many are ahead; `heldFor`: seconds. */
export function showPlace(element, one, { place, heldFor, lock, paused }) {
  const parts = show(element, one, one.holds ? "holder" : "waiter");
  const stands = one.holds && paused > 0;
  element.dataset.paused = stands;
  write(parts.role, stands ? texts.standsStill(seconds(paused)) : one.past ? texts.held : one.holds ? texts.holds : texts.place(place));
  const span = one.past ? "" : one.holds ? (heldFor < 0.1 ? texts.justNow : texts.heldFor(seconds(heldFor))) : one.waited_s === null ? "" : texts.waitsFor(seconds(one.waited_s));
  write(parts.facts, [texts.token(one.token), one.thread === lock.name ? "" : (one.thread ?? ""), span].filter(Boolean).join(" · "));
  write(parts.words, "");
  parts.lease.hidden = !one.holds || one.ttl_left_s === null;
  if (!parts.lease.hidden) {
    parts.drain.style.transform = `scaleX(${Math.min(1, one.ttl_left_s / lock.ttl_s)})`;
    write(parts.left, texts.leaseLeft(seconds(one.ttl_left_s)));
  }
}

/** Put a contender that only believes that it holds the lock on a card. */
export function showGhost(element, ghost, { guarded }) {
  const parts = show(element, ghost, "ghost");
  element.dataset.paused = ghost.paused_s > 0;
  write(parts.role, ghost.paused_s > 0 ? texts.standsStill(seconds(ghost.paused_s)) : texts.silent(seconds(ghost.silent_s)));
  write(parts.facts, texts.believes(ghost.instance, ghost.token));
  const overtaken = ghost.heir === null ? texts.ranOut : texts.overtaken(ghost.heir.instance ?? texts.somebody, ghost.heir.token);
  write(parts.words, `${overtaken} ${guarded ? texts.willBeRefused : texts.willNotBeRefused}`);
  parts.lease.hidden = true;
}

function show(element, { instance }, kind) {
  const parts = made.get(element);
  element.dataset.kind = kind;
  engrave(parts.name, instance ?? texts.somebody);
  element.dataset.colour = parts.name.dataset.colour;
  return parts;
}
