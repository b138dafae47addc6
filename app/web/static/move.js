// Elements that move to their new places, instead of jumping there.

const still = matchMedia("(prefers-reduced-motion: reduce)");
const MOVE = { duration: 420, easing: "cubic-bezier(0.2, 0.8, 0.2, 1)" };
const COME = { duration: 200, easing: "ease-out" };

/** Have `change` rearrange some elements (those that `elements` finds before and after), and let it be seen. */
export function moving(elements, change) {
  const before = new Map(elements().map((element) => [element, element.getBoundingClientRect()]));
  change();
  if (still.matches || document.hidden) return;
  for (const element of elements()) {
    const was = before.get(element);
    if (was === undefined) {
      element.animate([{ opacity: 0.5, transform: "translateX(12px)" }, { opacity: 1, transform: "none" }], COME);
      continue;
    }
    const is = element.getBoundingClientRect();
    const [x, y] = [was.left - is.left, was.top - is.top];
    if (Math.abs(x) > 1 || Math.abs(y) > 1) {
      element.animate([{ transform: `translate(${x}px, ${y}px)` }, { transform: "none" }], MOVE);
    }
  }
}
