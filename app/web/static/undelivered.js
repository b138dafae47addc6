// The events that did not leave: orders that are parked, dead letters, and the buttons that have them sent again.

import { texts } from "./ledger_texts.js";
import { texts as room } from "./control_texts.js";
import { keyed, make, part, write } from "./dom.js";
import { number } from "./figure.js";
import { command, toTheDoor } from "./session.js";

const EVERY_MS = 5_000;
const PATIENCE_MS = 20_000;

let query = "";
let several = false; // receivers

const rows = (moment) =>
  keyed(
    part("undelivered-rows"),
    ({ receiver, state, order, entry }) => `${receiver} ${state} ${order} ${entry}`,
    () => {
      const head = make("th", "");
      head.scope = "row";
      return make("tr", "", head, make("td", "state"), ...["", "number", "number", "", "", ""].map((kind) => make("td", kind)));
    },
    (made, { receiver, state, order, events, tries, since, next, why }) => {
      const cells = [order, texts.deliveries[state], receiver, number(events), tries === null ? "" : number(tries)];
      [...cells, moment(since), next === null ? "" : moment(next), why].forEach((text, place) => write(made.cells[place], text));
      made.cells[2].hidden = !several;
      made.cells[1].dataset.kind = state === "dead" ? "wrong" : "lacking";
    },
  );

async function look(show) {
  try {
    const answer = await fetch(`/control/undelivered${query}`, { signal: AbortSignal.timeout(PATIENCE_MS) });
    if (answer.status === 401) return toTheDoor();
    if (answer.ok) {
      const found = await answer.json();
      knowReceivers(found.receivers);
      show(found.rows);
      part("undelivered").hidden = !found.receiver && found.total === 0;
      part("undelivered-table").hidden = found.total === 0;
      write(part("undelivered-said"), texts.undelivered(number(found.total), found.total > found.rows.length));
    }
  } catch {
    // it is tried again
  }
  setTimeout(() => look(show), EVERY_MS);
}

function knowReceivers(names) {
  const choice = part("replay-to");
  several = names.length > 1;
  part("replay-to-one").hidden = part("undelivered-receiver").hidden = !several;
  if (choice.options.length === names.length + 1) return;
  choice.replaceChildren(new Option(texts.allReceivers, ""), ...names.map((name) => new Option(name)));
}

async function replay(wish) {
  if (several && part("replay-to").value) wish.receiver = part("replay-to").value;
  write(part("replay-said"), room.oneMoment);
  const { answer, problem } = await command("POST", `/control/replay${query}`, wish);
  write(part("replay-said"), problem ?? texts.replayed(answer.items.join(room.comma)));
}

/** Show what did not leave of an item, or of all, and make the buttons work; `moment` writes one. */
export function wireUndelivered(sku, moment) {
  query = sku ? `?sku=${encodeURIComponent(sku)}` : "";
  part("replay-dead").addEventListener("click", () => replay({}));
  part("replay").addEventListener("submit", (event) => {
    event.preventDefault();
    replay({ since: new Date(part("replay-since").value).getTime() / 1_000 });
  });
  look(rows(moment));
}
