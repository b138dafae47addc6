// The memory of this browser (or this tab), as JSON; where it refuses to keep anything, the memory of this page.

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
        // private browsing, or full: it is kept as long as the page lives
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
