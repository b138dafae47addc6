// The picture of a sale that the service draws twice a second, for as long as the page is open.

import { toTheDoor } from "./session.js";

const PATIENCE_MS = 6_000; // a picture comes twice a second, or, if the store is silent, every few seconds
const AGAIN_MS = 2_000;
const TOLD_MS = 3_000; // when somebody begins to look, all instances tell what was before, within that
const ELSEWHERE_MS = 5_000; // an instance that is restarted is given so long to come back

/**
 * Look at the sale of an item. `onHistory` gets what was before, twice, `onPicture` each picture, `onConnection` whether they
 * come: "live", "lost", or "never" where there can't be such an item.
 *
 * A page whose token is not valid any more goes to the login page.
 */
export function follow(sku, { onHistory, onPicture, onConnection }) {
  const query = `?sku=${encodeURIComponent(sku)}`;
  let stream = null;
  let timer;
  let last = null;
  let heardAt = performance.now();

  function seen(picture) {
    last = picture;
    heardAt = performance.now();
    onPicture(picture);
  }

  // Where each instance has an address of its own, another one that was there goes on.
  function elsewhere() {
    const own = last?.instances.find(({ instance }) => instance === last.instance);
    if (!own || String(own.port) !== location.port || performance.now() - heardAt < ELSEWHERE_MS) return;
    const other = last.instances.find(({ port, silent }) => port > 0 && port !== own.port && !silent);
    if (other === undefined) return;
    const address = new URL(location.href);
    address.port = other.port;
    location.replace(address);
  }

  function open() {
    stream?.close();
    stream = new EventSource(`/control/live${query}`);
    stream.onmessage = ({ data }) => {
      expect(PATIENCE_MS);
      onConnection("live");
      seen(JSON.parse(data));
    };
    stream.onerror = () => {
      onConnection("lost"); // it tries again by itself, unless it was refused
      if (stream.readyState === EventSource.CLOSED) expect(AGAIN_MS);
    };
    expect(PATIENCE_MS);
  }

  function expect(withinMs) {
    clearTimeout(timer);
    timer = setTimeout(look, withinMs);
  }

  // Why nothing comes: we may not look any more, there can't be such an item, there are too many who do, or the line is dead and does not know it.
  async function look() {
    onConnection("lost");
    try {
      const answer = await fetch(`/control/picture${query}`, { signal: AbortSignal.timeout(PATIENCE_MS) });
      if (answer.status === 401 || answer.status === 403) {
        toTheDoor();
        return;
      }
      if (answer.status === 422) {
        stream.close();
        onConnection("never");
        return;
      }
      if (answer.ok) seen(await answer.json());
    } catch {
      elsewhere();
    }
    open();
  }

  async function recall() {
    try {
      const answer = await fetch(`/control/history${query}`, { signal: AbortSignal.timeout(PATIENCE_MS) });
      if (answer.ok) onHistory(await answer.json());
    } catch {
      // it begins with what comes
    }
  }

  recall().then(open);
  setTimeout(recall, TOLD_MS);
}
