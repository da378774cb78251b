// Light, dark, or as the system has it.

import { button, icon } from "./dom.js";
import { text } from "./text.js";

const NAME = "swarmkeep.theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };
const ICON = { auto: "auto", light: "sun", dark: "moon" };

function readTheme() {
  const theme = localStorage.getItem(NAME);
  return theme in NEXT ? theme : "auto";
}

function applyTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

applyTheme(readTheme());

export function themeButton() {
  const control = button(text.theme.label, { icon: ICON[readTheme()], kind: "ghost theme", quiet: true });
  const show = () => {
    const theme = readTheme();
    applyTheme(theme);
    control.title = text.theme[theme];
    control.setAttribute("aria-label", text.theme[theme]);
    control.replaceChildren(icon(ICON[theme]));
  };
  control.addEventListener("click", () => {
    localStorage.setItem(NAME, NEXT[readTheme()]);
    show();
  });
  show();
  return control;
}
