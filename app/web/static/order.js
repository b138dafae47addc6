// An order, for people: the page asks until an instance knows.

import { browser } from "./keep.js";
import { skuOf } from "./order_id.js";
import { lookUp, shopOf, shorten } from "./orders.js";
import { copyButton, nameOf, number, part, showPicture, write } from "./page.js";
import { texts } from "./texts.js";

const PAUSE_MS = 3_000;
const moment = new Intl.DateTimeFormat(texts.locale, { dateStyle: "medium", timeStyle: "short" });

const order = new URLSearchParams(location.search).get("id") ?? "";
const sku = skuOf(order);
const kept = (browser.get(`orders.${sku}`) ?? []).find((one) => one.order === order);
const short = shorten(order, []);

function show(state, quantity, at) {
  part("shop").dataset.state = state;
  write("state", texts.states[state][0]);
  write("remark", texts.states[state][1]);
  for (const [fact, text] of [
    ["quantity", quantity && number.format(quantity)],
    ["when", at && moment.format(at)],
  ]) {
    write(fact, text ?? "");
    part(fact).parentElement.hidden = text === undefined;
  }
}

async function look() {
  const found = await lookUp(order);
  if (found === null) {
    show("away", undefined, kept?.at);
    setTimeout(look, PAUSE_MS * (0.75 + Math.random() / 2));
  } else if (found.gone) {
    show("gone", undefined, kept?.at);
  } else {
    const state = { held: "held", expired: "over", cancelled: "over", refunded: "over" }[found.state] ?? "bought";
    show(state, found.quantity, found.sold_at * 1_000);
  }
}

document.documentElement.lang = texts.language;
document.title = `${texts.order} ${short} · ${texts.title}`;
write("title", texts.order);
write("item", sku === "" ? texts.noOrder : nameOf(sku));
for (const fact of ["quantity", "when", "number"]) write(`${fact}-title`, texts.facts[fact]);
write("number", short);
write("whole", order);
write("back", texts.back);
part("back").href = shopOf(sku === "" ? "default" : sku);
if (order !== "") part("copy").append(copyButton(order, short));
showPicture();
show("looking", undefined, kept?.at);
part("shop").hidden = false;
look();
