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
