// The one way to the server. A key travels in a header, never in an address.

import { encodeJson } from "./jsontext.js";
import { sseReader } from "./sse.js";
import { advice, text } from "./text.js";

// The page is at the root of the server, whatever path a proxy has for that.
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

// In this tab only, or in the browser for whoever wants that.
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

// Called whenever the server asks for a key.
export const needsKey = { ask: () => {} };

export const segment = (id) => encodeURIComponent(id);
export const sessionPath = (id, rest = "") => `sessions/${segment(id)}${rest}`;

// What `early.js` has asked for is asked for once.
function takeEarlyAnswer(path, secret) {
  const answer = secret === key.get() ? globalThis.early?.get(path) : null;
  globalThis.early?.delete(path);
  return answer;
}

async function send(path, { method = "GET", headers = {}, body, signal, secret = key.get() } = {}) {
  const all = { ...headers };
  if (secret) all.Authorization = `Bearer ${secret}`;
  if (body !== undefined) all["Content-Type"] = "application/json";
  let answer;
  try {
    answer = (await takeEarlyAnswer(path, secret)) ?? await fetch(new URL(path, ROOT), { method, headers: all, body, signal, cache: "no-store", credentials: "omit" });
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

// Sets a run going and waits for no more than that: what comes of it is in the session's events.
export async function begin(path, body) {
  const answer = await change("POST", path, { ...body, stream: true });
  await answer.body.cancel();
}

// The same key each time: sent again after a broken connection, nothing happens twice.
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
