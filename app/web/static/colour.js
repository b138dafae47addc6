// Each instance has a colour of its own, the same wherever it is shown. The colours are in common.css.

import { make, write } from "./dom.js";

const COLOURS = 6;
const given = new Map();

function place(instance) {
  if (!given.has(instance)) given.set(instance, (given.size % COLOURS) + 1);
  return given.get(instance);
}

/** Give these instances their colours, in this order. */
export function introduce(instances) {
  instances.forEach(place);
}

const known = new Map();
const light = matchMedia("(prefers-color-scheme: dark)");

/** Have `change` called when the theme becomes light or dark. */
export function onLight(change) {
  light.addEventListener("change", change);
  addEventListener("theme", change);
}

onLight(() => known.clear());

/** A colour of the style sheets, as it is now: it changes with the theme. */
export function colour(name) {
  if (!known.has(name)) {
    const probe = document.body.appendChild(make("span", "unseen"));
    probe.style.color = `var(${name})`;
    known.set(name, getComputedStyle(probe).color);
    probe.remove();
  }
  return known.get(name);
}

/** The colour of an instance, as it is now. */
export function colourOf(instance) {
  return colour(`--instance-${place(instance)}`);
}

/** The name of an instance, beside its colour. */
export function nameplate() {
  return make("span", "nameplate");
}

/** Write an instance's name on its plate. */
export function engrave(plate, instance) {
  write(plate, instance);
  plate.dataset.colour = place(instance);
}

/** Show the colour alone, beside a text that has the name. */
export function dot(instance) {
  const made = make("span", "dot");
  made.dataset.colour = place(instance);
  return made;
}

/** A new plate with a name on it. */
export function plate(instance) {
  const made = nameplate();
  engrave(made, instance);
  return made;
}
