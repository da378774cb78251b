// What model calls cost, by the server's table of prices: as it reckons itself, so that each call can be told its own.

import { get } from "./api.js";

let priceTable = { currency: null, data: [] };
let pricesAsked = null;
const pricesFound = new Map();

// Asked once. Without an answer nothing has a price.
export function loadPrices() {
  pricesAsked ??= get("prices").then((found) => {
    priceTable = found;
    pricesFound.clear();
  }).catch(() => (pricesAsked = null));
  return pricesAsked;
}

function priceOf(model) {
  if (!pricesFound.has(model)) {
    const fitting = priceTable.data.filter((price) => price.model === model || fitsPattern(price.model, model));
    fitting.sort((one, other) => (other.model === model) - (one.model === model) || other.model.length - one.model.length);
    pricesFound.set(model, fitting[0] ?? null);
  }
  return pricesFound.get(model);
}

// As the server has it: what is between two stars is put as early as it can be and never moved, so that names of models, which providers
// choose, and patterns with many stars do not multiply, as they would in a regular expression.
function fitsPattern(pattern, model) {
  const [first, ...others] = pattern.split("*").map((piece) => [...piece]);
  const name = [...model];
  const standsAt = (piece, at) => piece.every((sign, place) => at + place < name.length && (sign === "?" || sign === name[at + place]));
  if (!others.length) return first.length === name.length && standsAt(first, 0);
  const last = others.pop();
  const end = name.length - last.length;
  let at = first.length;
  if (at > end || !standsAt(first, 0) || !standsAt(last, end)) return false;
  for (const piece of others) {
    while (at + piece.length <= end && !standsAt(piece, at)) at += 1;
    at += piece.length;
    if (at > end) return false;
  }
  return true;
}

// Null where nobody knows.
export function costOf({ name, tokens }) {
  const price = tokens && priceOf(name);
  if (!price) return null;
  const cached = Math.min(tokens.cached, tokens.prompt);
  return ((tokens.prompt - cached) * price.input + cached * price.cached_input + tokens.completion * price.output) / 1_000_000;
}

export function costOfRun(run) {
  let [sum, part] = [null, false];
  for (const span of run.spans) {
    if (!span.tokens) continue;
    const cost = costOf(span);
    if (cost === null) part = true;
    else sum = (sum ?? 0) + cost;
  }
  return sum === null ? "" : `${formatCost(sum)}${part ? "+" : ""}`;
}

export function formatCost(amount) {
  if (amount === null || !priceTable.currency) return "";
  const digits = amount > 0 && amount < 1 ? { maximumSignificantDigits: 2, minimumFractionDigits: 0 } : { maximumFractionDigits: 2 };
  return new Intl.NumberFormat("en", { style: "currency", currency: priceTable.currency, ...digits }).format(amount);
}
