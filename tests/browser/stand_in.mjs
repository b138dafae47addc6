// The part of a browser that the modules need and Node lacks. Import it before the modules.

import { webcrypto } from "node:crypto";

/** Have a global name mean this. */
export function define(name, value) {
  Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
}

/** Be at an address, with a reader who wants these languages. */
export function visit(address, ...languages) {
  define("location", new URL(address, "http://shop.test"));
  define("navigator", { languages });
}

define("history", { state: null, replaceState: (_state, _title, address) => define("location", new URL(address, location)) });

function storage() {
  const kept = new Map();
  return {
    getItem: (name) => kept.get(name) ?? null,
    setItem: (name, value) => kept.set(name, value),
    removeItem: (name) => kept.delete(name),
    clear: () => kept.clear(),
  };
}

/** The timers that are set: `{ act, ms }`, oldest first. None goes off by itself. */
export const timers = [];

/** Let everything happen that waits for no timer. */
export const settle = () => new Promise(setImmediate);

/** Let the newest timer go off, and return its milliseconds. */
export async function elapse() {
  const { act, ms } = timers.pop();
  act();
  await settle();
  return ms;
}

/** Answer requests with these from now on, the last one again and again; returns the list of requests. */
export function answer(...answers) {
  const requests = [];
  define("fetch", async (path, options = {}) => {
    requests.push({ path, ...options });
    const { status = 200, json, body, headers = {} } = answers.length > 1 ? answers.shift() : answers[0];
    if (status === 0) throw new TypeError("nobody answers");
    return new Response(body ?? JSON.stringify(json ?? null), { status, headers });
  });
  return requests;
}

/** Begin a test: nothing is kept, no timer is set, and nobody answers. */
export function anew() {
  visit("/", "en-GB");
  for (const kept of [localStorage, sessionStorage]) kept.clear();
  timers.length = 0;
  answer({ status: 0 });
}

const listeners = new EventTarget();
define("addEventListener", (...how) => listeners.addEventListener(...how));
define("dispatchEvent", (event) => listeners.dispatchEvent(event));
define("document", new EventTarget());
define("crypto", webcrypto);
define("localStorage", storage());
define("sessionStorage", storage());
define("setTimeout", (act, ms) => {
  const timer = { act, ms };
  timers.push(timer);
  return timer;
});
define("clearTimeout", (timer) => timers.includes(timer) && timers.splice(timers.indexOf(timer), 1));
anew();
