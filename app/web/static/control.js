// The control room: hands each picture of the sale to the parts of the page that show it.

import "./theme.js";
import { introduce } from "./colour.js";
import { showCommands, wireCommands } from "./commands.js";
import { texts } from "./control_texts.js";
import { showCurves } from "./curves.js";
import { part, write } from "./dom.js";
import { showEvents } from "./events.js";
import { number } from "./figure.js";
import { showGrants } from "./grants.js";
import { showHealth } from "./health.js";
import { recall as recallCurves, remember } from "./history.js";
import { showInstances } from "./instances.js";
import { recall as recallLanes, showLanes, wireLanes } from "./lanes.js";
import { follow } from "./picture.js";
import { showQueue } from "./queue.js";
import { explain, furnish, wireRoom } from "./room.js";
import { showVerdict } from "./verdict.js";
import { wholeRows } from "./whole_rows.js";

const sku = new URLSearchParams(location.search).get("sku") ?? "default";
let serving = "";
let holds = false;
let extension = null; // what a laboratory adds to this page
let asked = false;

function showFigures({ level, missing, store_error, instances }) {
  part("store-trouble").hidden = level !== null;
  part("stock-and-lucky").hidden = level === null;
  write(part("store-trouble-title"), missing ? texts.noSuchItem(sku) : texts.storeAway);
  write(part("store-trouble-detail"), missing ? texts.restockMakesIt : (store_error ?? ""));
  if (level !== null) {
    const total = level.initial ?? level.stock + level.held + level.lucky;
    write(part("stock"), number(level.stock));
    write(part("of"), texts.of(number(total)));
    holds ||= level.held > 0;
    part("held-tile").hidden = !holds; // where nothing is ever held nobody needs it
    write(part("held"), number(level.held));
    write(part("held-note"), texts.notPaidYet(level.waiting));
    write(part("lucky"), number(level.lucky));
    write(part("share"), total > 0 ? texts.share(number((100 * level.lucky) / total)) : "");
  }
  write(part("waiting"), number(instances.reduce((sum, { waiting }) => sum + waiting, 0)));
}

function showNothing() {
  part("store-trouble").hidden = false;
  part("stock-and-lucky").hidden = true;
  write(part("store-trouble-title"), texts.noSuchItem(sku));
  write(part("store-trouble-detail"), texts.notAName);
}

async function extend() {
  if (asked) return;
  asked = true;
  try {
    const found = await import("./extension.js");
    found.enter(sku);
    extension = found;
  } catch {
    asked = false; // an instance may not have it
  }
}

furnish(sku);
explain();
wireCommands(sku);
wireLanes();
wireRoom(sku);
for (const name of ["events", "grants"]) wholeRows(document.querySelector(`.${name} .scroll`));
follow(sku, {
  onHistory: (history) => {
    recallCurves(history);
    recallLanes(history);
  },
  onPicture: (picture) => {
    serving = picture.instance;
    introduce(picture.instances.map(({ instance }) => instance));
    remember(picture);
    showHealth(picture);
    showFigures(picture);
    if (picture.rehearsal) extend();
    showLanes(picture, extension?.showExtension(picture) ?? null);
    showVerdict(picture, extension?.wrongSince());
    showCurves(picture);
    showQueue(picture);
    showInstances(picture);
    showGrants(picture);
    showEvents(picture);
    showCommands(picture);
    part("room").dataset.seen = true;
  },
  onConnection: (state) => {
    part("connection").dataset.state = state;
    part("room").dataset.state = state;
    write(part("connection"), texts.connection[state](serving));
    if (state === "never") showNothing();
  },
});
