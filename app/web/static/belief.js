// The last holder of the lock, between two grants, and instances that believe they hold the lock although they no longer do:
// their grant is a ghost.

const LATELY_S = 1; // so long the last holder is shown
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

let last = { instance: null, token: "-1", at: 0 }; // the last holder: seen with the lock, or known from its grant

/** The instance that had the lock a moment ago, when nobody has it now: `{ instance, token }`, or null. */
export function lately({ at, lock, lock_error, queue, grants }) {
  const holder = queue.find(({ holds }) => holds);
  const ends = grants.map(({ instance, token, at: from, held_ms }) => ({ instance, token, at: Math.min(at, from + held_ms / 1_000) }));
  if (holder) ends.push({ instance: holder.instance, token: holder.token, at });
  for (const one of ends) if (BigInt(one.token) >= BigInt(last.token)) last = one;
  if (holder || lock_error !== null || lock.keeps_apart !== EVERYBODY) return null;
  return at - last.at < LATELY_S ? last : null;
}

/** The first instance to have had the lock since: `{ instance, token }`. */
function heir({ queue, grants }, token) {
  const later = [...queue.filter(({ holds }) => holds), ...grants].filter((one) => BigInt(one.token) > BigInt(token));
  later.sort((one, other) => (BigInt(one.token) < BigInt(other.token) ? -1 : 1));
  return later[0] ?? null;
}
