// The lock's queue as it is: its holder, its waiters in their order, and instances that wrongly believe they hold it.

import { ghosts, lately } from "./belief.js";
import { card, showGhost, showPlace } from "./card.js";
import { texts } from "./control_texts.js";
import { arrange, make, part, write } from "./dom.js";
import { milliseconds, number, seconds } from "./figure.js";
import { moving } from "./move.js";

const SHOWN = 8; // more than that only count

let cards = []; // the shown ones: `{ element, instance, token, ghost }`
const heldSince = new Map(); // by key: when the page first saw that it holds the lock
const empty = make("li", "place empty");
const more = make("li", "more");
const PAST = { key: "past", holds: true, past: true, ttl_left_s: null, held_s: 0, waited_s: null };
const elements = () => cards.map(({ element }) => element);

/** Show the queue of a picture; what was there before moves to where it is now. */
export function showQueue(picture) {
  const lost = ghosts(picture);
  const before = lately(picture);
  const past = before !== null && !lost.some(({ token }) => token === before.token) ? [{ ...PAST, ...before }] : [];
  const shown = [...past, ...picture.queue].slice(0, SHOWN);
  const hidden = past.length + picture.queue.length - shown.length;
  write(part("lock"), texts.lock(picture.lock.system, picture.lock.name, seconds(picture.lock.ttl_s)));
  part("lock-trouble").hidden = picture.lock_error === null;
  write(part("lock-trouble-detail"), picture.lock_error ?? "");
  part("unseen-waiters").hidden = picture.lock.shows_waiters || picture.lock_error !== null;
  moving(elements, () => {
    const now = [...shown, ...lost].map((one) => ({ one, instance: one.instance, token: one.token, ghost: !("key" in one) }));
    deal(now);
    cards = now;
    now.forEach((it, place) => (it.ghost ? showGhost(it.element, it.one, picture) : fill(it, place, picture)));
    const free = picture.lock_error === null && !shown.some(({ holds }) => holds);
    if (free) write(empty, vacancy(picture));
    write(more, texts.more(number(hidden)));
    arrange(part("line"), [
      ...(free ? [empty] : []),
      ...now.filter(({ ghost }) => !ghost).map(({ element }) => element),
      ...(hidden > 0 ? [more] : []),
    ]);
    arrange(part("ghosts"), now.filter(({ ghost }) => ghost).map(({ element }) => element));
  });
}

/** A contender that is still there keeps its card; else the next place of the same instance takes the card over. */
function deal(now) {
  const left = [...cards];
  const take = (fits) => {
    const found = left.findIndex(fits);
    return found < 0 ? undefined : left.splice(found, 1)[0].element;
  };
  for (const it of now) it.element = take(({ instance, token }) => instance === it.instance && token === it.token);
  for (const it of now) it.element ??= take(({ instance, ghost }) => instance === it.instance && !ghost && !it.ghost) ?? card();
}

function fill({ element, one }, place, { at, lock, instances }) {
  if (one.holds && !one.past && !heldSince.has(one.key)) {
    heldSince.clear();
    heldSince.set(one.key, at);
  }
  const heldFor = one.held_s ?? at - (heldSince.get(one.key) ?? at);
  const paused = instances.find(({ instance }) => instance === one.instance)?.paused_s ?? 0;
  showPlace(element, one, { place, heldFor, lock, paused });
}

function vacancy({ at, lock, grants }) {
  if (lock.keeps_apart === "nobody") return texts.noLock;
  const [last] = grants;
  if (last === undefined) return `${texts.nobodyHolds} ${texts.nobodyEver}`;
  const ago = Math.max(0, at - last.at - last.held_ms / 1_000);
  return `${texts.nobodyHolds} ${texts.lastHolder(last.instance, last.token, number(last.purchases), milliseconds(last.held_ms), seconds(ago))}`;
}
