// The pause of the whole sale, and its end: each item for itself, and what became of each is said.

import { confirmed } from "./dialog.js";
import { part, write } from "./dom.js";
import { number } from "./figure.js";
import { askPause } from "./pause_text.js";
import { phaseOf } from "./sale.js";
import { command } from "./session.js";
import { called } from "./thing.js";
import { both as texts } from "./overview_texts.js";

const AT_ONCE = 4;

let items = [];
let now = 0;

const paused = () => items.filter(({ level }) => level?.paused);
const pausable = () => items.filter(({ level }) => level !== null && !level.paused && phaseOf(level, now) !== "ended");

async function change(of, terms, done) {
  const [left, failed] = [[...of], []];
  let changed = 0;
  part("all-said").dataset.kind = "waiting";
  const work = async () => {
    for (let item = left.shift(); item !== undefined; item = left.shift()) {
      write(part("all-said"), texts.working(number(changed + failed.length), number(of.length)));
      const { answer, problem } = await command("PUT", `/stock?sku=${encodeURIComponent(item.sku)}`, terms);
      if (answer) changed += 1;
      else failed.push(`${called(item)}: ${problem}`);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  part("all-said").dataset.kind = failed.length > 0 ? "problem" : "done";
  write(part("all-said"), [done(changed, number(changed)), ...failed].join(" "));
}

function one(button, act) {
  part(button).addEventListener("click", async () => {
    if (part(button).getAttribute("aria-disabled") === "true") return;
    part(button).setAttribute("aria-disabled", "true"); // not disabled: the keyboard's focus stays here
    await act();
    part(button).removeAttribute("aria-disabled");
  });
}

const names = (of) => of.map(called).join(texts.comma);

/** Make the buttons work. */
export function wirePauseAll() {
  one("pause-all", async () => {
    const of = pausable();
    const terms = await askPause(texts.pauseWords(names(of)));
    if (terms !== null) await change(of, terms, texts.pausedAll);
  });
  one("resume-all", async () => {
    const of = paused();
    if (!(await confirmed(texts.resumeAllDialog(names(of))))) return;
    await change(of, { paused: null }, texts.resumedAll);
  });
}

/** The items as they are now. */
export function showPauseAll(found, at) {
  [items, now] = [found, at];
  part("pause-all").hidden = pausable().length === 0;
  part("resume-all").hidden = paused().length === 0;
}
