// The operator's commands to the service.

import { texts } from "./control_texts.js";

const PATIENCE_MS = 30_000; // a restock waits for the lock
const READ_MS = 20_000;

/**
 * Send a request that changes something; resolves with `{ answer }`, or with `{ problem, said }`: why not, in words and as the
 * service said it. `body`: as it is sent, of this `type`; `match`: what the service is to find, or it changes nothing;
 * `key`: by which it knows a repetition.
 */
export async function send(method, path, { body, type = "application/json", match, key, patienceMs = PATIENCE_MS } = {}) {
  try {
    const session = await fetch("/control/session", { signal: AbortSignal.timeout(PATIENCE_MS) });
    if (session.status === 401) return toTheDoor();
    const { csrf } = await session.json();
    const answer = await fetch(path, {
      method,
      headers: { "Content-Type": type, "X-Seckill-Csrf": csrf, ...(match && { "If-Match": match }), ...(key && { "Idempotency-Key": key }) },
      body,
      signal: AbortSignal.timeout(patienceMs),
    });
    if (answer.status === 401) return toTheDoor();
    if (answer.status === 204) return { answer: null };
    const said = await answer.json();
    return answer.ok ? { answer: said } : { problem: texts.problem(said.title, said.detail), said };
  } catch {
    return { problem: texts.noAnswer };
  }
}

/** Read something; resolves with `{ answer }`, or with `{ problem }`: why not, in words. */
export async function read(path, patienceMs = READ_MS) {
  try {
    const answer = await fetch(path, { signal: AbortSignal.timeout(patienceMs) });
    if (answer.status === 401) return toTheDoor();
    const said = await answer.json();
    return answer.ok ? { answer: said } : { problem: texts.problem(said.title, said.detail) };
  } catch {
    return { problem: texts.noAnswer };
  }
}

/** Read it again and again as long as the page is seen; `show(answer)` gets each. */
export async function readEvery(ms, path, show) {
  const { answer } = document.hidden ? {} : await read(path);
  if (answer) show(answer);
  setTimeout(() => readEvery(ms, path, show), ms);
}

/** Send a command of this content, as JSON. */
export const command = (method, path, content, also) => send(method, path, { body: content && JSON.stringify(content), ...also });

/** Have the browser forget its operator. */
export async function leave() {
  const { problem } = await command("POST", "/control/leave");
  if (problem === undefined) toTheDoor();
}

/** Go to where the token is asked for; the item and the language stay what they are. */
export function toTheDoor() {
  location.assign(`/control/login${location.search}`);
  return { problem: texts.sessionEnded };
}
