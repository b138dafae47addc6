// How many units are left, by server-sent events or by polling; and what time it is at the service.

const LIVE_PAUSE_MS = 60_000; // between polls while events come: they set the clock, and notice a dead connection
const FIRST_PAUSE_MS = 3_000; // between polls else; longer each time that they tell nothing new
const ASKING_PAUSE_MS = 30_000; // the longest while we may not listen, or nobody answers
const SELDOM_PAUSE_MS = 300_000; // the longest while there is no such item, or its sale is over
const REFUSED_PAUSE_MS = 60_000; // until we ask for events again
const REST_AFTER_MS = 3_600_000; // without news; then nothing is asked until somebody is here again
const TIMER_MAX_S = 2_000_000; // what a browser's timer can wait for
const PATIENCE_MS = 10_000;
const NO_ITEM = ["urn:seckill:unknown-item", "urn:seckill:invalid-request"]; // any other refusal is a proxy's

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

/** A level without what changes although nothing has happened. */
const newsOf = (level) => JSON.stringify(level, (name, value) => (["now", "audit"].includes(name) ? undefined : value));

/**
 * Follow what a path tells of an item, or of several, for as long as somebody looks at the page; `live` is that of its stream.
 *
 * `onLevel` gets what the path answers, `onMissing` nothing, `onConnection` "live", "asking", "lost" or "resting"; `isOver(level, now)`
 * says whether the sale is over; `startOf(level)` when it starts, or null.
 */
export function follow({ path, live }, { onLevel, onMissing = () => {}, onConnection, isOver = () => false, startOf = () => null }) {
  const clock = new Clock();
  let stream = null;
  let streamAfter = 0;
  let timer;
  let pauseMs = FIRST_PAUSE_MS;
  let told = 0;
  let level = null;
  let newAt = performance.now();
  let reached = true;
  let missing = false;
  let resting = false;

  const isLive = () => stream?.readyState === EventSource.OPEN;
  const isQuiet = () => missing || (level !== null && isOver(level, clock.now));
  const report = () => onConnection(resting ? "resting" : !reached ? "lost" : isLive() ? "live" : "asking");

  function hear(said) {
    if (missing || level === null || newsOf(said) !== newsOf(level)) begin();
    level = said;
    missing = false;
    onLevel(said);
  }

  /** There is something new, or somebody is here: be quick again. */
  function begin() {
    newAt = performance.now();
    pauseMs = FIRST_PAUSE_MS;
  }

  async function look() {
    const sent = performance.now();
    const toldBefore = told;
    try {
      const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
      const received = performance.now();
      const said = await answer.json().catch(() => null);
      reached = answer.ok ? said !== null : NO_ITEM.includes(said?.type);
      if (reached && answer.ok) {
        clock.hear(said.now, sent, received);
        if (told === toldBefore) hear(said); // else an event brought something newer meanwhile
      } else if (reached) {
        missing = true;
        level = null;
        onMissing();
      }
      pauseMs = Math.max(pauseMs, 1_000 * (Number(answer.headers.get("Retry-After")) || 0));
    } catch {
      reached = false;
      streamAfter = 0; // an instance that refused may have been about to stop: ask the next one again
      close(); // when polls fail the stream may be dead, too, without notice
    }
    if (!reached) clock.doubt();
    report();
  }

  function listen() {
    stream = new EventSource(live);
    stream.onopen = () => {
      reached = true;
      report();
    };
    stream.onmessage = ({ data }) => {
      told += 1;
      reached = true;
      report();
      hear(JSON.parse(data));
    };
    stream.onerror = () => {
      if (stream.readyState === EventSource.CLOSED) {
        stream = null; // refused: too many listen
        streamAfter = performance.now() + REFUSED_PAUSE_MS;
      } else {
        reached = false; // it tries again by itself
      }
      report();
      schedule(FIRST_PAUSE_MS / 3);
    };
  }

  function close() {
    stream?.close();
    stream = null;
  }

  async function turn() {
    await look();
    if (document.hidden) return;
    if (isQuiet()) close();
    else if (stream === null && reached && performance.now() >= streamAfter) listen();
    if (performance.now() > newAt + REST_AFTER_MS) return rest();
    if (isLive() && reached) return schedule(LIVE_PAUSE_MS);
    schedule(pauseMs);
    pauseMs = Math.min(1.5 * pauseMs, isQuiet() ? SELDOM_PAUSE_MS : ASKING_PAUSE_MS);
  }

  /** Ask for nothing any more, until somebody is here again, or a sale is about to start. */
  function rest() {
    close();
    resting = true;
    report();
    const left = level === null ? null : startOf(level) - clock.now;
    if (left > 0 && left < TIMER_MAX_S) timer = setTimeout(wake, 1_000 * left * (1 - Math.random() / 100));
  }

  function wake() {
    if (document.hidden) return;
    clearTimeout(timer);
    resting = false;
    begin();
    clock.doubt();
    turn();
  }

  function schedule(pause) {
    clearTimeout(timer);
    timer = setTimeout(turn, pause * (0.75 + Math.random() / 2)); // thousands of pages don't ask in step
  }

  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (document.hidden) close();
    else wake();
  });
  for (const sign of ["pointerdown", "keydown", "focus"]) addEventListener(sign, () => resting && wake());
  turn();

  return { clock, look, isLive };
}
