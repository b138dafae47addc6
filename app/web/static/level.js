// How many units are left, by server-sent events or by polling; and what time it is at the service.

const LIVE_PAUSE_MS = 60_000; // between polls while events come: they set the clock, and notice a dead connection
const ASKING_PAUSE_MS = 3_000; // while we are not
const MISSING_PAUSE_MS = 15_000; // while there is no such item
const REFUSED_PAUSE_MS = 60_000; // until we ask for events again
const PATIENCE_MS = 10_000;

/** The service's clock, from the answer with the shortest round trip; half of that was the way back. */
export class Clock {
  #offset = null; // seconds, to this page's own clock, which no change of the machine's time moves
  #roundTrip = Infinity;

  hear(now, sent, received) {
    const roundTrip = received - sent;
    if (roundTrip <= this.#roundTrip) {
      this.#roundTrip = roundTrip;
      this.#offset = now - (sent + received) / 2_000;
    }
  }

  /** Have the next answer count, whatever its round trip: this page slept, or another machine may be answering. */
  doubt() {
    this.#roundTrip = Infinity;
  }

  /** Seconds since 1970; null before the first answer. */
  get now() {
    return this.#offset === null ? null : this.#offset + performance.now() / 1_000;
  }
}

/**
 * Follow an item for as long as somebody looks at the page.
 *
 * `onLevel` gets what `GET /stock` answers, `onMissing` nothing, `onConnection` "live", "asking" or "lost".
 */
export function follow(sku, { onLevel, onMissing, onConnection }) {
  const query = `?sku=${encodeURIComponent(sku)}`;
  const clock = new Clock();
  let stream = null;
  let streamAfter = 0;
  let timer;
  let told = 0;
  let reached = true;
  let missing = false;

  const isLive = () => stream?.readyState === EventSource.OPEN;
  const report = () => onConnection(!reached ? "lost" : isLive() ? "live" : "asking");

  async function look() {
    const sent = performance.now();
    const toldBefore = told;
    try {
      const answer = await fetch(`/stock${query}`, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
      const received = performance.now();
      if (answer.ok) {
        const level = await answer.json();
        clock.hear(level.now, sent, received);
        if (told === toldBefore) onLevel(level); // else an event brought something newer meanwhile
      } else if (answer.status < 500) {
        onMissing();
      }
      missing = !answer.ok && answer.status < 500;
      reached = answer.status < 500;
    } catch {
      reached = false;
      streamAfter = 0; // an instance that refused may have been about to stop: ask the next one again
      close(); // when polls fail the stream may be dead, too, without notice
    }
    if (!reached) clock.doubt();
    report();
  }

  function listen() {
    stream = new EventSource(`/stock/live${query}`);
    stream.onopen = () => {
      reached = true;
      report();
    };
    stream.onmessage = ({ data }) => {
      told += 1;
      reached = true;
      report();
      onLevel(JSON.parse(data));
    };
    stream.onerror = () => {
      if (stream.readyState === EventSource.CLOSED) {
        stream = null; // refused: too many listen
        streamAfter = performance.now() + REFUSED_PAUSE_MS;
      } else {
        reached = false; // it tries again by itself
      }
      report();
      schedule(ASKING_PAUSE_MS / 3);
    };
  }

  function close() {
    stream?.close();
    stream = null;
  }

  async function turn() {
    await look();
    if (document.hidden) return;
    if (stream === null && reached && !missing && performance.now() >= streamAfter) listen();
    schedule(isLive() && reached ? LIVE_PAUSE_MS : missing ? MISSING_PAUSE_MS : ASKING_PAUSE_MS);
  }

  function schedule(pauseMs) {
    clearTimeout(timer);
    timer = setTimeout(turn, pauseMs * (0.75 + Math.random() / 2)); // thousands of pages don't ask in step
  }

  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (document.hidden) {
      close();
    } else {
      clock.doubt();
      turn();
    }
  });
  turn();

  return { clock, look, isLive };
}
