// A small line of what was lately: how fast something was sold.

const SVG = "http://www.w3.org/2000/svg";
const [WIDE, HIGH] = [100, 28];

/** A new line, without points. */
export function spark() {
  const made = document.createElementNS(SVG, "svg");
  made.setAttribute("class", "spark");
  made.setAttribute("viewBox", `0 0 ${WIDE} ${HIGH}`);
  made.setAttribute("preserveAspectRatio", "none");
  made.setAttribute("aria-hidden", "true");
  made.append(document.createElementNS(SVG, "polygon"), document.createElementNS(SVG, "polyline"));
  return made;
}

/** Draw points `{ at, value }` into it, those of the last `span` seconds; `top`: the highest value, if it is known. */
export function draw(line, points, now, span, top = 0) {
  const most = Math.max(top, 1e-9, ...points.map(({ value }) => value));
  const seen = points.filter(({ at }) => at >= now - span);
  const places = seen.map(({ at, value }) => [(WIDE * (at - seen[0].at)) / span, HIGH - 1 - ((HIGH - 3) * value) / most].map((one) => one.toFixed(2)));
  const [area, curve] = line.children;
  curve.setAttribute("points", places.map((one) => one.join()).join(" "));
  const below = places.length < 2 ? [] : [[places[0][0], HIGH], ...places, [places.at(-1)[0], HIGH]];
  area.setAttribute("points", below.map((one) => one.join()).join(" "));
}
