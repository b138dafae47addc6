// Light or dark: as the system has it, or as the reader has chosen. Set before anything is drawn.

const KEPT = "seckill-theme";
const THEMES = ["auto", "light", "dark"];

/** The reader's choice: "auto", "light" or "dark". */
export const theme = () => THEMES.find((one) => one === localStorage.getItem(KEPT)) ?? "auto";

/** The next one of the three. */
export function nextTheme() {
  localStorage.setItem(KEPT, THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);
  apply();
}

function apply() {
  document.documentElement.dataset.theme = theme();
  dispatchEvent(new Event("theme"));
}

apply();
