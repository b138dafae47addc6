// How numbers, spans and moments are written.

import { texts } from "./control_texts.js";

const whole = new Intl.NumberFormat(texts.locale, { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat(texts.locale, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat(texts.locale, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});

export const number = (value) => whole.format(value);

/** A number, with a decimal where that matters. */
export const about = (value) => (value >= 10 || Number.isInteger(Math.round(value * 10) / 10) ? whole : tenths).format(value);

/** A span in seconds. */
export const seconds = (value) => texts.seconds(about(value));

/** A span in milliseconds; from a second on in seconds. */
export const milliseconds = (value) =>
  value >= 1_000 ? texts.seconds(tenths.format(value / 1_000)) : texts.milliseconds(about(value));

/** A moment in seconds since 1970, as a time of day. */
export const moment = (at) => clock.format(at * 1_000);

/** How long ago something was, in one number. */
export const age = (value) =>
  value < 1.5 ? texts.justNow : texts.ago(value < 90 ? texts.seconds(whole.format(value)) : value < 5_400 ? texts.minutes(whole.format(value / 60)) : texts.hours(whole.format(value / 3_600)));
