// A single light for all: whether anything can be sold now, and if not, why.

import { texts } from "./control_texts.js";
import { part, write } from "./dom.js";
import { adds } from "./verdict.js";

/** Judge a picture: the light's kind, "good", "warn" or "bad", and its words. */
export function judge({ level, missing, store_error, lock_error, lock, instances, audit }) {
  const present = instances.filter(({ silent }) => !silent);
  const troubled = present.filter(({ lacks }) => lacks.length > 0);
  if (missing) return ["warn", texts.health.missing];
  if (store_error !== null) return ["bad", texts.health.store];
  if (lock_error !== null) return ["bad", texts.health.lock(lock.system)];
  if ((audit !== null && !audit.consistent) || !adds(level)) return ["bad", texts.health.violated];
  if (troubled.length > 0 && troubled.length === present.length) return ["bad", texts.health.lacks(troubled[0].lacks.map(named).join(texts.comma))];
  if (present.some(({ paused_s }) => paused_s > 0)) return ["warn", texts.health.paused];
  if (troubled.length > 0 || present.length < instances.length) return ["warn", texts.health.some(String(instances.length - present.length + troubled.length))];
  if (level?.paused) return ["warn", texts.health.salePaused];
  if (level !== null && level.stock === 0) return ["good", texts.health.soldOut];
  return ["good", instances.some(({ waiting }) => waiting > 0) ? texts.health.selling : texts.health.ready];
}

/** The name of a check of /readyz. */
export const named = (check) => texts.checks[check] ?? check;

/** Show the light. */
export function showHealth(picture) {
  const [kind, words] = judge(picture);
  part("health").dataset.kind = kind;
  write(part("health"), words);
}
