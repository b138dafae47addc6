// Elements that come to a new place: they fade in there. Sliding, they would cover each other's text.

const still = matchMedia("(prefers-reduced-motion: reduce)");
const COME = { duration: 260, easing: "ease-out" };

/** Have `change` rearrange some elements (those that `elements` finds before and after), and let it be seen. */
export function moving(elements, change) {
  const before = new Map(elements().map((element) => [element, element.getBoundingClientRect()]));
  change();
  if (still.matches || document.hidden) return;
  for (const element of elements()) {
    const [was, is] = [before.get(element), element.getBoundingClientRect()];
    if (was && Math.abs(was.left - is.left) <= 1 && Math.abs(was.top - is.top) <= 1) continue;
    element.animate([{ opacity: 0.35 }, { opacity: 1 }], COME);
  }
}
