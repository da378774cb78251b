// JSON on its way to and from the screen: text that keeps its numbers, and changes of values.

// JSON as it was written. Read into numbers of JavaScript, one with more than fifteen digits would become another.

const JSON_TOKENS = /"[^"\\]*(?:\\.[^"\\]*)*"|[{}[\],:]|[^\s{}[\],:"]+/gs;
const OPENS = new Set(["{", "["]);
const CLOSES = new Set(["}", "]"]);
// Deeper values are not laid out: their lines would be blank for the most part.
const DEEPEST = 100;

// These change how the text around them is read, so that a person could approve what stands there in another order. JSON may write
// them as escapes, which mean the same.
const UNSAFE_SIGNS = /[\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

export const escapedSigns = (source) => source.replaceAll(UNSAFE_SIGNS, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);

// Texts are given as JSON writes them, so that an escaped letter is read as that letter.
function* tokensOf(source) {
  JSON.parse(source);
  for (const [token] of source.matchAll(JSON_TOKENS)) yield token.startsWith('"') ? escapedSigns(JSON.stringify(JSON.parse(token))) : token;
}

// One way to write it, by which two texts are compared. Raises where it is no JSON, as the others do.
export const compactJson = (source) => [...tokensOf(source)].join("");

export function indentedJson(source) {
  const parts = [];
  let depth = 0;
  let isFirst = false;
  const line = () => `\n${"  ".repeat(depth)}`;
  for (const token of tokensOf(source)) {
    if (CLOSES.has(token)) {
      depth -= 1;
      if (!isFirst) parts.push(line());
    } else if (isFirst) parts.push(line());
    isFirst = OPENS.has(token);
    if (isFirst && (depth += 1) > DEEPEST) throw new RangeError("too deep");
    parts.push(token);
    if (token === ",") parts.push(line());
    else if (token === ":") parts.push(" ");
  }
  return parts.join("");
}

// The names and values of an object, and no more than the first `most` characters of them.
export function membersOfJson(source, most) {
  const found = [];
  let [depth, size, name, value] = [0, 0, null, ""];
  const take = () => {
    if (name !== null) found.push([name, value]);
    [name, value] = [null, ""];
  };
  for (const token of tokensOf(source)) {
    if (!size && token !== "{") throw new TypeError("no object");
    if (CLOSES.has(token)) depth -= 1;
    if (depth === 0 || (depth === 1 && token === ",")) take();
    else if (name === null) name = JSON.parse(token);
    else if (depth > 1 || token !== ":") value += token;
    if (OPENS.has(token)) depth += 1;
    size += token.length;
    if (size > most) break;
  }
  take();
  return found;
}

// A part of a request that is sent exactly as the user wrote it.
export class WrittenJson {
  constructor(source) {
    JSON.parse(source);
    this.source = source;
  }
}

export function encodeJson(value) {
  if (value instanceof WrittenJson) return value.source;
  if (Array.isArray(value)) return `[${value.map((part) => encodeJson(part ?? null)).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const members = Object.entries(value).filter(([, part]) => part !== undefined);
  return `{${members.map(([name, part]) => `${JSON.stringify(name)}:${encodeJson(part)}`).join(",")}}`;
}

// Changes of JSON values: merge patches, and nulls where a patch cannot say them.

// No value is nested as deeply; a longer pointer changes nothing.
const MAX_POINTER_STEPS = 500;

// RFC 7396.
export function merge(target, patch) {
  if (!isObject(patch)) return patch;
  const result = new Map(Object.entries(isObject(target) ? target : {}));
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) result.delete(name);
    else result.set(name, merge(result.get(name), value));
  }
  return Object.fromEntries(result);
}

// `value` with null at each of these places. Every object on the way is copied once, however many of them are in it.
export function withNulls(value, pointers) {
  const copies = new Set();
  const copy = (inner) => {
    if (copies.has(inner)) return inner;
    const made = Object.fromEntries(Object.entries(isObject(inner) ? inner : {}));
    copies.add(made);
    return made;
  };
  const result = copy(value);
  for (const pointer of pointers) {
    const path = pointer.split("/").slice(1).map((step) => step.replaceAll("~1", "/").replaceAll("~0", "~"));
    if (path.length === 0 || path.length > MAX_POINTER_STEPS) continue;
    const last = path.pop();
    let inner = result;
    for (const step of path) inner = put(inner, step, copy(Object.hasOwn(inner, step) ? inner[step] : null));
    put(inner, last, null);
  }
  return result;
}

// An assignment would take "__proto__" for the prototype.
function put(object, key, value) {
  Object.defineProperty(object, key, { value, writable: true, enumerable: true, configurable: true });
  return value;
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
