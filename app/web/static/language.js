// The language of a page, one of those that it has: by the browser's preference, or by ?lang=zh.

/** The words of the one chosen of `languages`, and `locale`: how dates and numbers are written. */
export function choose(languages) {
  const asked = new URLSearchParams(location.search).get("lang");
  if (Object.hasOwn(languages, asked)) return { ...languages[asked], locale: asked };
  const locale = navigator.languages.find((one) => Object.hasOwn(languages, one.slice(0, 2))) ?? "en";
  return { ...languages[locale.slice(0, 2)], locale };
}
