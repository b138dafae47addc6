// The picture of a sale that the service draws twice a second, for as long as the page is open.

import { toTheDoor } from "./session.js";

const PATIENCE_MS = 6_000; // a picture comes twice a second, or, if the store is silent, every few seconds
const AGAIN_MS = 2_000;

/**
 * Look at the sale of an item. `onPicture` gets each picture, `onConnection` whether they come: "live", "lost", or
 * "never" where there can't be such an item.
 *
 * A page whose token is not valid any more goes to the login page.
 */
export function follow(sku, { onPicture, onConnection }) {
  const query = `?sku=${encodeURIComponent(sku)}`;
  let stream = null;
  let timer;

  function open() {
    stream?.close();
    stream = new EventSource(`/control/live${query}`);
    stream.onmessage = ({ data }) => {
      expect(PATIENCE_MS);
      onConnection("live");
      onPicture(JSON.parse(data));
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
      if (answer.ok) onPicture(await answer.json());
    } catch {
      // nobody is there
    }
    open();
  }

  open();
}
