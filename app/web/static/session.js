// The operator's commands to the service.

import { texts } from "./control_texts.js";

const PATIENCE_MS = 30_000; // a restock waits for the lock

/** Send a command; resolves with `{ answer }`, or with `{ problem, said }`: why not, in words and as the service said it. */
export async function command(method, path, body) {
  try {
    const session = await fetch("/control/session", { signal: AbortSignal.timeout(PATIENCE_MS) });
    if (session.status === 401) return toTheDoor();
    const { csrf } = await session.json();
    const answer = await fetch(path, {
      method,
      headers: { "Content-Type": "application/json", "X-Seckill-Csrf": csrf },
      body: body && JSON.stringify(body),
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    if (answer.status === 401) return toTheDoor();
    if (answer.status === 204) return { answer: null };
    const said = await answer.json();
    return answer.ok ? { answer: said } : { problem: texts.problem(said.title, said.detail), said };
  } catch {
    return { problem: texts.noAnswer };
  }
}

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
