// The auditor's verdict, as a badge.

import { texts } from "./control_texts.js";
import { part, write } from "./dom.js";
import { age as sinceThen, number } from "./figure.js";

const NOBODY_LOOKS_S = 60; // a verdict that old is nobody's any more

/** Whether a level's units are as many as there were at first. */
export const adds = (level) => level === null || (level.initial ?? null) === null || level.stock + level.held + level.lucky === level.initial;

/** What to call a verdict: one from before something went wrong says nothing of it, and a level that doesn't add up needs none. */
export function kindOf({ at, audit, level = null }, wrongSince = -Infinity) {
  if (!adds(level)) return "uneven";
  if (audit === null || at - audit.at > NOBODY_LOOKS_S) return "nobody";
  if (!audit.consistent) return "violated";
  return audit.at <= wrongSince ? "pending" : "consistent";
}

/** Show the verdict of a picture; `wrongSince`: when a write was taken that should not have been. */
export function showVerdict(picture, wrongSince) {
  const { at, audit } = picture;
  const kind = kindOf(picture, wrongSince);
  part("verdict").dataset.kind = kind;
  write(part("verdict"), kind === "violated" ? texts.violations(number(audit.violations)) : texts.verdicts[kind]);
  write(part("looked"), audit === null ? "" : texts.looked(audit.items, number(audit.orders), sinceThen(Math.max(0, at - audit.at))));
}
