// How a sale stands at a moment, and how the shop says it.

import { texts } from "./texts.js";

/** The phase of a sale, from the level and the service's clock. */
export function phaseOf(level, now) {
  if (level === null) return "unknown";
  if (level.starts_at !== null && now < level.starts_at) return "before";
  if (level.ends_at !== null && now >= level.ends_at) return "ended";
  if (level.paused) return "paused";
  if (level.stock > 0 && !level.waiting) return "open"; // while somebody waits, nobody else gets what comes back
  return level.stock + level.held > 0 ? "all_held" : "sold_out";
}

/** Seconds as a clock shows them: minutes and seconds, with hours and a day before if there are any; of more days only their number. */
export function countdown(seconds) {
  const [days, hours, minutes] = [86_400, 3_600, 60].map((unit) => Math.floor(seconds / unit));
  const parts = [...(hours > 0 ? [hours % 24] : []), minutes % 60, seconds % 60];
  const digits = parts.map((value) => String(value).padStart(2, "0")).join(":");
  return days > 1 ? texts.days(days) : days > 0 ? texts.day(days) + digits : digits;
}

const hour = new Intl.DateTimeFormat(texts.locale, { hour: "numeric", minute: "2-digit" });
const style = { month: "short", day: "numeric", hour: "numeric", minute: "2-digit" };
const moment = new Intl.DateTimeFormat(texts.locale, style);
const dated = new Intl.DateTimeFormat(texts.locale, { ...style, year: "numeric" });

/** Whether two moments, in seconds since 1970, are on the same day. */
const isSameDay = (one, other) => new Date(one * 1_000).toDateString() === new Date(other * 1_000).toDateString();

const yearOf = (seconds) => new Date(seconds * 1_000).getFullYear();

/** A moment, in seconds since 1970, as people write it; the day is said if it is not today's, and so is the year. */
export const when = (seconds, now) => (isSameDay(seconds, now) ? hour : yearOf(seconds) === yearOf(now) ? moment : dated).format(seconds * 1_000);

/** When a sale opens. */
export const opening = ({ starts_at }, now) => texts.buttons.before(when(starts_at, now), isSameDay(starts_at, now));

/** What is said below a phase; of units that are held, when the first of them go back. */
export function remarkOf(phase, level, now) {
  const remark = texts.remarks[phase] ?? "";
  if (phase === "paused") return pauseText(level);
  if (phase !== "all_held") return remark;
  const { goes_back_at: back = null, waiting = 0 } = level;
  return remark(back === null || back <= now ? null : when(back, now)) + (waiting > 0 ? ` · ${texts.line.length(waiting.toLocaleString(texts.locale))}` : "");
}

/** What the operator tells of a pause, in the reader's language if it was said in it. */
export const pauseText = (level) => level.paused_texts?.[texts.words] ?? level.paused;

/** An error in the buyer's language: the service's own words are for its operators. */
export function wordsOf({ type, status }) {
  const kind = type.replace("urn:seckill:", "");
  return Object.hasOwn(texts.problems, kind) ? texts.problems[kind] : texts.problem(status);
}
