// The instances, as each describes itself.

import { engrave, nameplate } from "./colour.js";
import { texts } from "./control_texts.js";
import { keyed, make, part, write } from "./dom.js";
import { number, seconds } from "./figure.js";
import { named } from "./health.js";

function row() {
  const made = make("tr", "");
  const head = make("th", "", nameplate(), make("span", "mark"));
  head.scope = "row";
  made.append(head, make("td", "number"), make("td", "number"), make("td", ""), make("td", "state"));
  return made;
}

function fill(made, { instance, units, waiting, mode, pausing, paused_s, silent_s, silent, lacks, marks }) {
  const [head, sold, buyers, how, state] = made.cells;
  engrave(head.firstChild, instance);
  write(head.lastChild, marks);
  write(sold, number(units));
  write(buyers, number(waiting));
  write(how, texts.modes[mode] ?? mode);
  const kind = silent ? "silent" : paused_s > 0 ? "paused" : pausing ? "pausing" : lacks.length > 0 ? "lacking" : "ready";
  const words = {
    silent: texts.silent(seconds(silent_s)),
    paused: texts.standsStill(seconds(paused_s)),
    lacking: texts.lacks(lacks.map(named).join(texts.comma)),
  };
  state.dataset.kind = kind;
  write(state, words[kind] ?? texts.states[kind]);
}

const rows = keyed(part("instances"), ({ instance }) => instance, row, fill);

/** Show the instances. While the store is away nobody hears of the others: they stay as they were. */
export function showInstances(picture) {
  rows(
    picture.instances.map((one) => ({
      ...one,
      silent: one.silent && (picture.store_error === null || picture.missing),
      marks: [
        one.instance === picture.instance ? texts.thisOne : "",
        one.instance === picture.audit?.auditor ? texts.auditor : "",
      ]
        .filter(Boolean)
        .join(texts.comma),
    })),
  );
}
