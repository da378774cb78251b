// The arguments of a call as a form: a field for each by the schema of its tool, with what was changed marked, and all of it as JSON.

import { button, h, pretty } from "./dom.js";
import { compactJson, escapedSigns, membersOfJson, WrittenJson } from "./json.js";
import { text } from "./text.js";

const t = text.approval;
const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;
const LONG_LINE = 60;
const LONGEST_IN_SUMMARY = 200;
let fieldCount = 0;

// What a call does, in the words of `@tool(summary=…)`, and whether these name all of its arguments; null without them.
export function summaryOf(agent, name, input) {
  const template = agent?.summaries?.[name];
  const given = template && membersOf(input);
  if (!given) return null;
  const named = new Set();
  const words = template.replaceAll(/\{\{|\}\}|\{([^{}]+)\}/g, (sign, member) => {
    if (!member) return sign[0];
    named.add(member);
    return given.has(member) ? cut(shownAs(given.get(member))) : "…";
  });
  return { words, isWhole: [...given.keys()].every((member) => named.has(member)) };
}

// The members of an object as they are written; null for what is none, and for one that names a member twice.
function membersOf(source) {
  try {
    const found = membersOfJson(source.trim() || "{}", Infinity);
    const members = new Map(found);
    return members.size === found.length ? members : null;
  } catch {
    return null;
  }
}

const cut = (words) => (words.length > LONGEST_IN_SUMMARY ? `${words.slice(0, LONGEST_IN_SUMMARY)}…` : words);
const shownAs = (raw) => (raw.startsWith('"') ? escapedSigns(JSON.parse(raw)) : raw);

// The schema of a value, which may be named elsewhere, and what it is where it may also be null.
function resolve(schema, root) {
  const name = schema?.$ref?.match(/^#\/\$defs\/([^/]+)$/)?.[1];
  const found = (name ? root.$defs?.[name] : schema) ?? {};
  const [only, ...others] = found.anyOf?.filter(({ type }) => type !== "null") ?? [];
  return only && !others.length && !only.anyOf ? { ...found, ...resolve(only, root) } : found;
}

// How a value is written: text, number or choice where nothing of it is lost that way, and else JSON.
function kindOf({ type, enum: choices }, raw) {
  const given = raw === undefined ? type : raw.startsWith('"') ? "string" : raw === "true" || raw === "false" ? "boolean" : NUMBER.test(raw) ? "number" : "json";
  if (choices?.every((choice) => typeof choice === "string") && (raw === undefined || choices.some((choice) => JSON.stringify(choice) === raw))) return "choice";
  if (given === "string") return raw !== undefined && escapedSigns(JSON.parse(raw)) !== JSON.parse(raw) ? "json" : "text";
  return { boolean: "choice", number: "number", integer: "number" }[given] ?? "json";
}

class ArgumentField {
  // `first`: what the model gave; `raw`: what stands there now. Both as JSON, or undefined.
  constructor(name, { schema, isRequired, first, raw, onInput }) {
    Object.assign(this, { name, first, raw, isRequired, kind: kindOf(schema, raw) });
    fieldCount += 1;
    const id = `argument-${fieldCount}`;
    this.shown = raw === undefined ? "" : this.kind === "text" ? JSON.parse(raw) : this.kind === "json" ? pretty(raw) : raw;
    this.input = this.control(schema, { id, dir: "auto", placeholder: raw === undefined && t.notGiven, "aria-describedby": `${id}-notes`, oninput: () => (this.mark(), onInput()) });
    this.input.value = this.shown;
    // A field may write what it is given in another way.
    this.shown = this.input.value;
    this.was = h("p", { class: "was", dir: "auto", hidden: true });
    this.wrong = h("p", { class: "reason", role: "alert", hidden: true });
    this.node = h("div", { class: "argument" }, h("label", { for: id, dir: "auto" }, name), this.input,
      h("div", { id: `${id}-notes` }, schema.description && h("p", { class: "muted", dir: "auto" }, schema.description), this.was), this.wrong);
    this.mark();
  }

  control({ enum: choices, type }, props) {
    if (this.kind === "choice") {
      const values = (choices ?? [true, false]).map((choice) => JSON.stringify(choice));
      return h("select", { class: "field", ...props }, !(this.isRequired && this.raw !== undefined) && h("option", { value: "" }, t.notGiven), values.map((value) => h("option", { value }, shownAs(value))));
    }
    if (this.kind === "number") return h("input", { class: "field", inputmode: type === "integer" ? "numeric" : "decimal", autocomplete: "off", ...props });
    if (this.kind === "text" && this.shown.length <= LONG_LINE && !/[\r\n]/.test(this.shown)) return h("input", { class: "field", autocomplete: "off", ...props });
    return h("textarea", { class: this.kind === "json" ? "field code" : "field", rows: Math.min(this.shown.split("\n").length + 1, 8), spellcheck: "false", ...props });
  }

  // As JSON; undefined if nothing is given. Raises what is wrong with it.
  read() {
    const { value } = this.input;
    if (value === this.shown) return this.raw;
    if (this.kind === "text") return JSON.stringify(value);
    if (!value.trim()) {
      if (this.isRequired) throw new Error(t.missing);
      return undefined;
    }
    if (this.kind === "number" && !NUMBER.test(value.trim())) throw new Error(t.noNumber);
    try {
      return compactJson(value);
    } catch (error) {
      throw new Error(t.noJson(error.message));
    }
  }

  mark() {
    let changed = true;
    try {
      changed = this.read() !== this.first;
    } catch {
      // What cannot be read was changed.
    }
    this.complain("");
    this.node.classList.toggle("changed", changed);
    this.was.hidden = !changed;
    this.was.textContent = changed ? t.was(this.first === undefined ? t.notGiven : shownAs(this.first)) : "";
  }

  complain(words) {
    this.wrong.textContent = words;
    this.wrong.hidden = !words;
    if (words) this.input.setAttribute("aria-invalid", "true");
    else this.input.removeAttribute("aria-invalid");
    if (words) this.input.focus();
    return false;
  }
}

export class ArgumentsForm {
  // `parameters`: the JSON schema of the tool's arguments, if it is known.
  constructor(input, parameters = {}) {
    this.input = input.trim() || "{}";
    this.parameters = parameters;
    this.first = membersOf(input);
    this.fields = [];
    this.place = h("div", { class: "arguments" });
    this.field = h("textarea", { class: "field code", spellcheck: "false", "aria-label": t.arguments, dir: "auto", oninput: () => this.complain("") });
    this.wrong = h("p", { class: "reason wrong", role: "alert", hidden: true });
    this.json = h("div", { class: "arguments-json", hidden: true }, this.field, this.wrong);
    this.switch = button(t.asJson, { kind: "ghost small as-json", "aria-pressed": "false", hidden: !this.first, onclick: () => (this.isJson ? this.showForm() : this.showJson()) });
    this.hint = h("p", { class: "muted", role: "status" });
    this.node = h("div", { class: "edit" }, this.place, this.json, h("div", { class: "row" }, this.hint, h("span", { class: "grow" }), this.switch));
    if (this.first) this.build(this.first);
    else this.write(this.input);
    this.tell();
  }

  get isJson() {
    return !this.json.hidden;
  }

  build(members) {
    const { properties = {}, required = [] } = this.parameters;
    const names = new Set([...this.first.keys(), ...members.keys(), ...Object.keys(properties)]);
    this.fields = [...names].map((name) => new ArgumentField(name, {
      schema: { ...properties[name], ...resolve(properties[name], this.parameters) }, isRequired: required.includes(name), first: this.first.get(name), raw: members.get(name), onInput: () => this.tell(),
    }));
    this.place.replaceChildren(...(this.fields.length ? this.fields.map(({ node }) => node) : [h("p", { class: "muted" }, t.noArguments)]));
  }

  // The arguments as they stand in the fields; null once one is wrong.
  compose() {
    const parts = [];
    for (const field of this.fields) {
      try {
        const raw = field.read();
        if (raw !== undefined) parts.push(`${JSON.stringify(field.name)}:${raw}`);
      } catch (error) {
        field.complain(error.message);
        return null;
      }
    }
    return `{${parts.join(",")}}`;
  }

  // What stands in the fields, right or wrong, for `restore`.
  get written() {
    return { source: this.isJson ? this.field.value : null, values: this.fields.map(({ input }) => input.value) };
  }

  restore({ source, values }) {
    if (source !== null) return this.write(source);
    for (const [index, field] of this.fields.entries()) {
      field.input.value = values[index] ?? field.input.value;
      field.mark();
    }
    return this.tell();
  }

  write(source) {
    this.field.value = pretty(source);
    this.field.rows = Math.min(this.field.value.split("\n").length + 1, 12);
    this.json.hidden = false;
    this.place.hidden = true;
    this.switch.setAttribute("aria-pressed", "true");
  }

  showJson() {
    const source = this.compose();
    if (source !== null) this.write(source);
  }

  showForm() {
    const members = this.readObject() && membersOf(this.field.value);
    if (!members) return this.complain(this.wrong.textContent || t.twice);
    this.build(members);
    this.json.hidden = true;
    this.place.hidden = false;
    this.switch.setAttribute("aria-pressed", "false");
    return this.tell();
  }

  tell() {
    const count = this.place.querySelectorAll(".changed").length;
    this.hint.textContent = count ? t.changed(count) : "";
  }

  // What was changed, as it was written; null if nothing was, and false if it cannot be sent.
  read() {
    const source = this.isJson ? this.readObject() : this.compose();
    if (!source) return false;
    return this.isAsBefore(source) ? null : new WrittenJson(source);
  }

  readObject() {
    // What the model gave is sent as it is, also where it is no JSON at all.
    if (this.field.value === pretty(this.input)) return this.input;
    try {
      const given = JSON.parse(this.field.value);
      if (given === null || typeof given !== "object" || Array.isArray(given)) return this.complain(t.noObject);
      return this.field.value;
    } catch (error) {
      return this.complain(t.noJson(error.message));
    }
  }

  // White space changes nothing.
  isAsBefore(source) {
    try {
      return source === this.input || compactJson(source) === compactJson(this.input);
    } catch {
      return false;
    }
  }

  complain(words) {
    this.wrong.textContent = words;
    this.wrong.hidden = !words;
    if (words) this.field.setAttribute("aria-invalid", "true");
    else this.field.removeAttribute("aria-invalid");
    if (words) this.field.focus();
    return false;
  }
}
