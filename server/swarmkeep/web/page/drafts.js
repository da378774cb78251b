// What somebody has begun to write, for each session: kept in this tab, through reloads and changes of view.

const NAME = "swarmkeep.draft.";

const nameOf = (id) => `${NAME}${id ?? ""}`;

export const draftOf = (id) => sessionStorage.getItem(nameOf(id)) ?? "";

export function keepDraft(id, words) {
  try {
    if (words.trim()) sessionStorage.setItem(nameOf(id), words);
    else sessionStorage.removeItem(nameOf(id));
  } catch {
    // No room for it: it is on the screen all the same.
  }
}

export function forgetDrafts() {
  for (const name of Object.keys(sessionStorage)) if (name.startsWith(NAME)) sessionStorage.removeItem(name);
}
