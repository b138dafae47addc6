// What this browser (or this tab) remembers, as JSON; where it refuses to, what this page remembers.

function keeper(storage) {
  const here = new Map();
  return {
    get(name) {
      try {
        return JSON.parse(storage().getItem(`seckill.${name}`)) ?? here.get(name) ?? null;
      } catch {
        return here.get(name) ?? null;
      }
    },
    set(name, value) {
      here.set(name, value);
      try {
        storage().setItem(`seckill.${name}`, JSON.stringify(value));
      } catch {
        // private browsing, or full: it is kept as long as the page is
      }
    },
    remove(name) {
      here.delete(name);
      try {
        storage().removeItem(`seckill.${name}`);
      } catch {
        // it was never there
      }
    },
  };
}

export const browser = keeper(() => localStorage);
export const tab = keeper(() => sessionStorage);
