// What a session is called: somebody's title for it, or how it began; names before ids.

const MAX_TITLE = 80;

const namedTitle = (metadata) => (typeof metadata?.title === "string" ? shortTitle(metadata.title) : "");

export const sessionTitle = ({ id, title, metadata }) => namedTitle(metadata) || title || id;

// The same of a session whose events are here, or the last of them.
export const stateTitle = (id, state) => namedTitle(state.metadata) || (state.isPart ? state.title : beginning(state.items)) || id;

function beginning(items) {
  for (const item of items.slice(0, 20)) {
    const said = item.kind === "user" && !item.removed ? shortTitle(item.text ?? "") : "";
    if (said && said !== "[redacted]") return said;
  }
  return "";
}

function shortTitle(said) {
  const characters = Array.from(said.slice(0, 800).replace(/\s+/g, " ").trim());
  if (characters.length <= MAX_TITLE) return characters.join("");
  const cut = characters.slice(0, MAX_TITLE - 1).join("");
  const at = cut.lastIndexOf(" ");
  return `${(at > MAX_TITLE / 2 ? cut.slice(0, at) : cut).replace(/[ ,;:.-]+$/, "")}…`;
}
