// The page put together: what is around both views, and which of them is shown.

import { get, key, needsKey } from "./api.js";
import { Chat } from "./chat.js";
import { button, clear, h, icon } from "./dom.js";
import { hrefOf, parsed } from "./route.js";
import { Sidebar } from "./sidebar.js";
import { text } from "./text.js";
import { themeButton } from "./theme.js";
import { Timeline } from "./timeline.js";

const TOAST_MS = 12_000;

class App {
  constructor() {
    this.agents = [];
    this.main = h("main", { id: "main", class: "main", tabindex: -1 });
    this.live = h("div", { class: "unseen", "aria-live": "polite" });
    this.toasts = h("div", { class: "toasts", role: "alert" });
    this.sidebar = new Sidebar({ onError: (error) => this.fail(error) });
    this.tabs = { chat: h("a", { class: "tab" }, text.nav.chat), timeline: h("a", { class: "tab" }, text.nav.timeline) };
    this.dialog = this.keyDialog();
    const menu = button(text.nav.menu, { icon: "menu", kind: "ghost menu", quiet: true, "aria-controls": "sessions", "aria-expanded": "false", onclick: () => this.toggleMenu() });
    this.menu = menu;
    document.body.append(
      h("a", { class: "skip", href: "#main", onclick: (event) => this.skip(event) }, text.nav.skip),
      h("header", { class: "top" }, menu, h("a", { class: "brand", href: hrefOf({ view: "chat" }) }, icon("brand"), text.product),
        h("nav", { class: "tabs", "aria-label": text.nav.main }, this.tabs.chat, this.tabs.timeline),
        h("span", { class: "grow" }),
        h("a", { class: "button ghost docs", href: new URL("../docs", import.meta.url) }, text.nav.docs),
        button(text.key.button, { icon: "key", kind: "ghost", quiet: true, onclick: () => this.askForKey() }),
        themeButton()),
      this.sidebar.node, h("div", { class: "veil", onclick: () => this.toggleMenu(false) }), this.main, this.live, this.toasts, this.dialog,
    );
    needsKey.ask = () => this.askForKey();
    addEventListener("hashchange", () => this.follow());
    addEventListener("keydown", (event) => this.shortcut(event));
  }

  async start() {
    await this.loadAgents();
    this.route = null;
    this.follow();
    await this.sidebar.load();
  }

  async loadAgents() {
    try {
      const found = [];
      let cursor = null;
      do {
        const page = await get(`agents?limit=200${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`);
        found.push(...page.data);
        cursor = page.next_cursor;
      } while (cursor);
      this.agents = found;
      this.sidebar.setAgents(found.map((agent) => agent.name));
    } catch (error) {
      this.fail(error);
    }
  }

  follow() {
    const route = parsed();
    const same = this.route && route.view === this.route.view && route.id === this.route.id;
    this.route = route;
    this.dress();
    if (same && this.view) this.view.moved?.(route);
    else this.reload();
    this.toggleMenu(false);
  }

  dress() {
    const { view, id } = this.route;
    for (const [name, tab] of Object.entries(this.tabs)) {
      tab.href = hrefOf({ view: name, id });
      if (name === view) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
    }
    document.title = [id, text[view].title, text.product].filter(Boolean).join(" · ");
    document.body.dataset.view = view;
    document.body.classList.toggle("with-session", id !== null);
    this.sidebar.show(this.route);
  }

  reload() {
    this.view?.close();
    this.view = this.route.view === "timeline" ? new Timeline(this, this.route) : new Chat(this, this.route);
    clear(this.main, this.view.node);
    if (this.route.view === "chat") this.view.composer.focus();
  }

  // The view has made its session itself, and goes on showing it.
  adopt(id) {
    this.route = { view: "chat", id, at: null };
    this.dress();
  }

  refresh() {
    this.sidebar.load({ quiet: true });
  }

  say(words) {
    this.live.append(h("p", {}, words));
    while (this.live.childElementCount > 5) this.live.firstChild.remove();
  }

  fail(error) {
    if (error.code === "unauthenticated") return;
    const toast = h("div", { class: "toast" }, h("div", {}, h("p", { class: "reason", dir: "auto" }, error.message), error.advice && error.advice !== error.message && h("p", { class: "muted" }, error.advice)));
    const away = () => toast.remove();
    toast.append(button(text.close, { icon: "cross", kind: "ghost small", quiet: true, onclick: away }));
    this.toasts.append(toast);
    while (this.toasts.childElementCount > 3) this.toasts.firstChild.remove();
    setTimeout(away, TOAST_MS);
  }

  toggleMenu(open = !document.body.classList.contains("menu-open")) {
    document.body.classList.toggle("menu-open", open);
    this.menu.setAttribute("aria-expanded", String(open));
    if (open) this.sidebar.search.focus();
  }

  skip(event) {
    event.preventDefault();
    this.main.focus();
  }

  shortcut(event) {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      this.toggleMenu(true);
      this.sidebar.search.focus();
    } else if (event.key === "Escape" && document.body.classList.contains("menu-open")) {
      this.toggleMenu(false);
      this.menu.focus();
    }
  }

  keyDialog() {
    const field = h("input", { class: "field", id: "api-key", type: "password", autocomplete: "off", spellcheck: "false" });
    const use = (value) => {
      key.set(value.trim());
      field.value = "";
      this.dialog.close();
      this.start();
    };
    return h("dialog", { class: "dialog", "aria-labelledby": "key-title" },
      h("form", { onsubmit: (event) => { event.preventDefault(); use(field.value); } },
        h("h2", { id: "key-title" }, text.key.title),
        h("label", { for: "api-key" }, text.key.label), field,
        h("p", { class: "muted" }, text.key.hint),
        h("div", { class: "row" }, button(text.key.save, { kind: "primary", type: "submit" }), button(text.key.forget, { onclick: () => use("") }), button(text.close, { kind: "ghost", onclick: () => this.dialog.close() }))));
  }

  askForKey() {
    if (!this.dialog.open) this.dialog.showModal();
  }
}

const app = new App();
app.start();
