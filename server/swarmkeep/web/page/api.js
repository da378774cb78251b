// The server: requests, streams of events, and the caller that the key belongs to.

import { encodeJson } from "./json.js";
import { advice, text } from "./text.js";

// Reads server-sent events out of pieces of text, wherever the pieces are cut.

function sseReader(onFrame) {
  let rest = "";
  return (piece) => {
    rest += piece;
    const lines = rest.split("\n\n");
    rest = lines.pop();
    for (const block of lines) {
      const frame = parseFrame(block);
      if (frame) onFrame(frame);
    }
  };
}

function parseFrame(block) {
  let event = "";
  let id = null;
  let data = "";
  for (let start = 0; start < block.length; ) {
    const end = block.indexOf("\n", start) + 1 || block.length + 1;
    if (block.startsWith("data: ", start)) data += block.slice(start + 6, end - 1);
    else if (block.startsWith("id: ", start)) id = Number(block.slice(start + 4, end - 1));
    else if (block.startsWith("event: ", start)) event = block.slice(start + 7, end - 1);
    start = end;
  }
  return event ? { event, id, data: JSON.parse(data) } : null;
}

// The one way to the server. A key travels in a header, never in an address.

// The page is at the root of the server; a proxy may put that under any path.
const ROOT = new URL("v1/", document.baseURI);
const KEY = "swarmkeep.key";
const TRIES = 4;

class ApiError extends Error {
  constructor(code, detail, { status = 0, problem = {} } = {}) {
    super(detail);
    this.code = code;
    this.status = status;
    this.problem = problem;
  }

  get advice() {
    return advice[this.code] ?? advice.fallback;
  }
}

// Kept in this tab, or by the browser if the user ticks that.
export const key = {
  get: () => sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? "",
  set: (value, { keep = false } = {}) => {
    sessionStorage.removeItem(KEY);
    localStorage.removeItem(KEY);
    if (value) (keep ? localStorage : sessionStorage).setItem(KEY, value);
  },
  get isKept() {
    return localStorage.getItem(KEY) !== null;
  },
};

// Called each time the server asks for a key.
export const needsKey = { ask: () => {} };

export const segment = (id) => encodeURIComponent(id);
export const sessionPath = (id, rest = "") => `sessions/${segment(id)}${rest}`;

// What `prefetch.js` has asked for is asked for once.
function takePrefetched(path, secret) {
  const answer = secret === key.get() ? globalThis.prefetched?.get(path) : null;
  globalThis.prefetched?.delete(path);
  return answer;
}

async function send(path, { method = "GET", headers = {}, body, signal, secret = key.get() } = {}) {
  const all = { ...headers };
  if (secret) all.Authorization = `Bearer ${secret}`;
  if (body !== undefined) all["Content-Type"] = "application/json";
  let answer;
  try {
    answer = (await takePrefetched(path, secret)) ?? await fetch(new URL(path, ROOT), { method, headers: all, body, signal, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("offline", advice.offline);
  }
  if (answer.ok) return answer;
  throw await readError(answer, secret);
}

async function readError(answer, secret) {
  const problem = await answer.json().catch(() => ({}));
  const error = new ApiError(problem.code ?? "internal_error", problem.detail ?? answer.statusText, { status: answer.status, problem });
  error.retryAfter = Number(answer.headers.get("Retry-After")) || 0;
  // A late answer to a request under an earlier key says nothing about the one that has taken its place.
  if (answer.status === 401 && secret === key.get()) needsKey.ask();
  return error;
}

export const get = async (path, options) => (await send(path, options)).json();
export const getText = async (path, headers) => (await send(path, { headers })).text();
export const getBlob = async (path, headers) => (await send(path, { headers })).blob();
export const patch = async (path, body) => (await change("PATCH", path, body)).json();
export const post = async (path, body = {}) => (await change("POST", path, body)).json();

export const remove = (path) => send(path, { method: "DELETE" });

// Starts a run and returns at once: its results arrive as events of the session.
export async function begin(path, body) {
  const answer = await change("POST", path, { ...body, stream: true });
  await answer.body.cancel();
}

// Sends one idempotency key with each attempt: a request that is repeated after a broken connection takes effect once.
async function change(method, path, body) {
  const headers = { "Idempotency-Key": crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}` };
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await send(path, { method, headers, body: encodeJson(body) });
    } catch (error) {
      const passing = error.code === "offline" || (error.status === 503 && error.code !== "schema_behind");
      if (!passing || attempt === TRIES) throw error;
      await pause(Math.max(error.retryAfter * 1000, 250 * 2 ** attempt));
    }
  }
}

export const pause = (ms, signal) =>
  new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal?.addEventListener("abort", end);
  });

// One connection to a stream, of a session's events `after` one of them; returns when it ends, however that comes.
export async function stream(path, { after = null, signal, onOpen = () => {}, onFrame }) {
  const answer = await send(path, { headers: { Accept: "text/event-stream", ...(after !== null && { "Last-Event-ID": String(after) }) }, signal });
  onOpen();
  const read = sseReader(onFrame);
  const pieces = answer.body.getReader();
  const decoder = new TextDecoder();
  try {
    for (let piece = await pieces.read(); !piece.done; piece = await pieces.read()) read(decoder.decode(piece.value, { stream: true }));
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("offline", text.link.lost);
  }
}

// The caller that the key belongs to, and what its role may do.

export const me = { known: null };

// Raises the server's refusal. A server without this route refuses at its other routes.
export async function findMe() {
  try {
    me.known = await get("me");
  } catch (error) {
    me.known = null;
    if (error.status !== 404) throw error;
  }
  return me.known;
}

export const may = (permission) => me.known === null || me.known.permissions.includes(permission);

// What the server calls the caller as an owner; null without keys.
export const ownName = () => (me.known?.key ? me.known.key.name || me.known.key.id : null);

// Names before ids.
export function nameOfMe() {
  const { key, tenant, role } = me.known ?? {};
  return key ? text.key.me(key.name || key.id, tenant, role) : null;
}
