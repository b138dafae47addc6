// How a sale stands at a moment, and how the shop says it.

import { texts } from "./texts.js";

/** The phase of a sale, from the level and the service's clock. */
export function phaseOf(level, now) {
  if (level === null) return "unknown";
  if (level.starts_at !== null && now < level.starts_at) return "before";
  if (level.ends_at !== null && now >= level.ends_at) return "ended";
  if (level.paused) return "paused";
  if (level.stock > 0) return "open";
  return level.held > 0 ? "all_held" : "sold_out";
}

/** Seconds as a clock shows them, with days before if there are any. */
export function countdown(seconds) {
  const [days, hours, minutes] = [86_400, 3_600, 60].map((unit) => Math.floor(seconds / unit));
  const digits = [hours % 24, minutes % 60, seconds % 60].map((value) => String(value).padStart(2, "0")).join(":");
  return days > 0 ? texts.days(days) + digits : digits;
}

/** An error in the buyer's language: the service's own words are for its operators. */
export function wordsOf({ type, status }) {
  const kind = type.replace("urn:seckill:", "");
  return Object.hasOwn(texts.problems, kind) ? texts.problems[kind] : texts.problem(status);
}
