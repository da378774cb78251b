// Where the page is: `#/chat`, `#/chat/ID`, `#/timeline`, `#/timeline/ID?at=12`.

export function parsed(hash = location.hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [view, id] = path.split("/");
  const at = Number(new URLSearchParams(query).get("at"));
  return {
    view: view === "timeline" ? "timeline" : "chat",
    id: id ? decoded(id) : null,
    at: Number.isSafeInteger(at) && at > 0 ? at : null,
  };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function hrefOf({ view, id = null, at = null }) {
  return `#/${view}${id ? `/${encodeURIComponent(id)}` : ""}${at ? `?at=${at}` : ""}`;
}

export const go = (route) => {
  location.hash = hrefOf(route);
};

// Without a new step in the history, for what changes as often as a slider does.
export const replaceRoute = (route) => history.replaceState(null, "", hrefOf(route));
