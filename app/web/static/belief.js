// Instances that believe they hold the lock although they no longer do: their grant is a ghost.

// An instance's report is up to a second old: only an instance that believes for longer is mistaken.
const MISTAKEN_S = 1.5;
const EVERYBODY = "all processes";

const believed = new Map(); // by instance: the token, since when it is not in the queue, and its heir

/** The ghosts of a picture: `{ instance, token, paused_s, silent_s, heir }`; `heir` has the lock's next grant, if known. */
export function ghosts(picture) {
  if (picture.lock.keeps_apart !== EVERYBODY || picture.lock_error !== null) return [];
  const held = new Set(picture.queue.filter(({ holds }) => holds).map(({ token }) => token));
  const found = [];
  for (const { instance, token, paused_s, silent_s } of picture.instances) {
    if (token === null || token === "0" || held.has(token)) {
      believed.delete(instance);
      continue;
    }
    const before = believed.get(instance);
    const belief = before?.token === token ? before : { token, since: picture.at, heir: null };
    belief.heir ??= heir(picture, token);
    believed.set(instance, belief);
    if (paused_s > 0 || picture.at - belief.since > MISTAKEN_S) {
      found.push({ instance, token, paused_s, silent_s, heir: belief.heir });
    }
  }
  return found;
}

/** The first instance to have had the lock since: `{ instance, token }`. */
function heir({ queue, grants }, token) {
  const later = [...queue.filter(({ holds }) => holds), ...grants].filter((one) => BigInt(one.token) > BigInt(token));
  later.sort((one, other) => (BigInt(one.token) < BigInt(other.token) ? -1 : 1));
  return later[0] ?? null;
}
