// The events that did not leave: orders that are parked, dead letters, and the buttons that have them sent again.

import "./theme.js";
import { texts } from "./undelivered_texts.js";
import { texts as room } from "./control_texts.js";
import { keyed, labelled, make, part, write } from "./dom.js";
import { number } from "./figure.js";
import { skuOf } from "./order_id.js";
import { furnish, wireRoom } from "./room.js";
import { command, readEvery } from "./session.js";
import { along } from "./ways.js";

const EVERY_MS = 5_000;
const style = { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
const moment = new Intl.DateTimeFormat(room.locale, style);
const clock = new Intl.DateTimeFormat(room.locale, { ...style, month: undefined, day: undefined });
const sku = new URLSearchParams(location.search).get("sku") ?? ""; // all items without

const COLUMNS = { receiver: "", events: "number", tries: "number", since: "", why: "why" };

let several = false; // receivers

const about = (item) => (item ? `?sku=${encodeURIComponent(item)}` : "");

const rows = keyed(
  part("undelivered-rows"),
  ({ receiver, state, order, entry }) => `${receiver} ${state} ${order} ${entry}`,
  ({ order, receiver }) => {
    const link = make("a", "", order);
    link.href = `/control/orders${along({ open: order })}`;
    const head = make("th", "", link);
    head.scope = "row";
    const again = make("button", "plain", texts.words.tryAgain);
    again.type = "button";
    again.setAttribute("aria-label", texts.again(order));
    again.addEventListener("click", () => replay(skuOf(order), several ? { order, receiver } : { order }));
    return make("tr", "", head, make("td", "state"), ...Object.entries(COLUMNS).map(([name, kind]) => labelled(texts.words[name], kind)), make("td", "number", again));
  },
  (made, { receiver, state, events, tries, since, next, why }) => {
    const stands = next === null ? texts.dead : texts.waits(clock.format(next * 1_000));
    const cells = [stands, receiver, number(events), tries === null ? "" : number(tries), moment.format(since * 1_000), why];
    cells.forEach((text, place) => write(made.cells[place + 1], text));
    made.cells[2].hidden = !several;
    made.cells[1].dataset.kind = state === "dead" ? "wrong" : "lacking";
  },
);

function show({ rows: found, total, receiver, receivers }) {
  knowReceivers(receivers);
  rows(found);
  part("undelivered-table").hidden = part("replay-dead").hidden = total === 0;
  part("again").hidden = !receiver && total === 0;
  const dead = found.filter(({ state }) => state === "dead").length;
  write(part("undelivered-said"), receiver || total > 0 ? texts.undelivered(found.length - dead, dead, total > found.length) : texts.noReceiver);
}

function knowReceivers(names) {
  const choice = part("replay-to");
  several = names.length > 1;
  part("replay-to-one").hidden = part("undelivered-receiver").hidden = !several;
  if (choice.options.length === names.length + 1) return;
  choice.replaceChildren(new Option(texts.allReceivers, ""), ...names.map((name) => new Option(name)));
}

async function replay(item, wish) {
  write(part("replay-said"), room.oneMoment);
  const { answer, problem } = await command("POST", `/control/replay${about(item)}`, wish);
  write(part("replay-said"), problem ?? texts.replayed((answer.items.length > 0 && wish.order) || answer.items.join(room.comma)));
}

/** To the receiver that is chosen, if there are several. */
const toOne = () => (several && part("replay-to").value ? { receiver: part("replay-to").value } : {});

furnish(sku);
wireRoom(sku);
part("replay-dead").addEventListener("click", () => replay(sku, toOne()));
part("replay").addEventListener("submit", (event) => {
  event.preventDefault();
  replay(sku, { since: new Date(part("replay-since").value).getTime() / 1_000, ...toOne() });
});
readEvery(EVERY_MS, `/control/undelivered${about(sku)}`, show);
