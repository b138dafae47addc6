// What buyers are told of a pause, in both languages: the dialog that asks for it.

import { pausedTexts } from "./control_texts.js";
import { asked } from "./dialog.js";
import { part, write } from "./dom.js";

/** Ask for it, with words on what is about to be paused; resolves with the terms of the pause, or with null: there is none. */
export async function askPause(words) {
  part("told-en").value ||= pausedTexts.en;
  part("told-zh").value ||= pausedTexts.zh;
  write(part("pause-words"), words);
  if (!(await asked(part("pause-dialog")))) return null;
  return { paused: part("told-en").value, paused_texts: part("told-zh").value ? { zh: part("told-zh").value } : null };
}
