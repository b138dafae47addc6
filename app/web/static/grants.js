// The last grants of the lock.

import { engrave, nameplate } from "./colour.js";
import { texts } from "./control_texts.js";
import { keyed, make, part, write } from "./dom.js";
import { milliseconds, number } from "./figure.js";

const SHOWN = 12;

function row() {
  const made = make("tr", "fresh");
  const head = make("th", "", nameplate());
  head.scope = "row";
  made.append(head, ...Array.from({ length: 6 }, () => make("td", "number")));
  return made;
}

function fill(made, { instance, token, waited_ms, held_ms, purchases, units, handed_over_ms, lost }) {
  const [head, ...cells] = made.cells;
  engrave(head.firstChild, instance);
  made.dataset.lost = lost;
  const words = [
    token,
    milliseconds(waited_ms),
    lost ? texts.lostAfter(milliseconds(held_ms)) : milliseconds(held_ms),
    number(purchases),
    number(units),
    handed_over_ms === null ? "–" : milliseconds(handed_over_ms),
  ];
  cells.forEach((cell, place) => write(cell, words[place]));
}

const rows = keyed(part("grants"), ({ instance, token, at }) => `${instance}/${token}/${at}`, row, fill);

/** Show them, newest first, and which of them were lost while their holder believed in them. */
export function showGrants({ grants, events }) {
  const lost = new Set(events.filter(({ kind }) => kind === "lost").map(({ instance, facts }) => `${instance}/${facts.token}`));
  part("no-grants").hidden = grants.length > 0;
  part("grants-table").hidden = grants.length === 0;
  rows(grants.slice(0, SHOWN).map((one) => ({ ...one, lost: lost.has(`${one.instance}/${one.token}`) })));
}
