// A list that scrolls ends below a whole row, and never in the middle of one.

/** Have this element that scrolls show whole rows only: those of its table, or its list. */
export function wholeRows(scroll) {
  function fit() {
    scroll.style.maxHeight = "";
    const top = scroll.getBoundingClientRect().top - scroll.scrollTop;
    const ends = [...scroll.querySelectorAll("li, tr")].map((row) => row.getBoundingClientRect().bottom - top);
    const room = scroll.clientHeight + 0.5;
    if (ends.length === 0 || ends.at(-1) <= room) return;
    const last = ends.findLast((end) => end <= room);
    if (last !== undefined) scroll.style.maxHeight = `${last}px`;
  }
  new ResizeObserver(fit).observe(scroll.parentElement);
  new MutationObserver(fit).observe(scroll, { childList: true, subtree: true });
}
