// The operator's commands to the service.

import { texts } from "./control_texts.js";

const PATIENCE_MS = 30_000; // a restock waits for the lock

/**
 * Send a request that changes something; resolves with `{ answer }`, or with `{ problem, said }`: why not, in words and as the
 * service said it. `body`: as it is sent, of this `type`; `match`: what the service is to find, or it changes nothing.
 */
export async function send(method, path, { body, type = "application/json", match, patienceMs = PATIENCE_MS } = {}) {
  try {
    const session = await fetch("/control/session", { signal: AbortSignal.timeout(PATIENCE_MS) });
    if (session.status === 401) return toTheDoor();
    const { csrf } = await session.json();
    const answer = await fetch(path, {
      method,
      headers: { "Content-Type": type, "X-Seckill-Csrf": csrf, ...(match && { "If-Match": match }) },
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

/** Send a command of this content, as JSON. */
export const command = (method, path, content, match) => send(method, path, { body: content && JSON.stringify(content), match });

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
