// How the control room's parts write into the document. Text goes in as text, never as HTML.

export const part = (id) => document.getElementById(id);

/** Write a text only if it has changed: else it would be announced and drawn again. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A new element with a class, and with texts and other elements in it. */
export function make(tag, className, ...content) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...content);
  return element;
}

/** A cell that knows its column's name, for a screen that has no columns. */
export function labelled(name, className, ...content) {
  const made = make("td", className, ...content);
  made.dataset.label = name;
  return made;
}

/** Have a container hold these elements, in this order; those that are in place are left alone. */
export function arrange(container, elements) {
  elements.forEach((element, place) => {
    if (container.children[place] !== element) container.insertBefore(element, container.children[place] ?? null);
  });
  while (container.children.length > elements.length) container.lastElementChild.remove();
}

/**
 * A list of things as elements of a container: each thing keeps its element.
 *
 * `keyOf` names a thing, `create` makes an element for it, `fill(element, thing)` writes what may have changed.
 */
export function keyed(container, keyOf, create, fill) {
  let known = new Map();
  return (things) => {
    const now = new Map();
    for (const thing of things) {
      const element = known.get(keyOf(thing)) ?? create(thing);
      fill(element, thing);
      now.set(keyOf(thing), element);
    }
    known = now;
    arrange(container, [...now.values()]);
  };
}
