// Asks for what the page begins with while its script is still on its way: see `takePrefetched` in `api.js`.

const key = sessionStorage.getItem("swarmkeep.key") ?? localStorage.getItem("swarmkeep.key");
const headers = key ? { Authorization: `Bearer ${key}` } : {};
const ask = (path) => fetch(new URL(`v1/${path}`, document.baseURI), { headers, cache: "no-store", credentials: "omit" }).catch(() => null);

globalThis.prefetched = new Map(["me", "agents?limit=200"].map((path) => [path, ask(path)]));
