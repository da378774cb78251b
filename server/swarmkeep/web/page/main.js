// The page put together: the frame around the views, the key dialog, and the view that the address names.

import { findMe, get, key, may, nameOfMe, needsKey, pause } from "./api.js";
import { Chat } from "./chat.js";
import { forgetDrafts } from "./composer.js";
import { button, clear, h, icon } from "./dom.js";
import { adoptAddress, hrefOf, parseRoute, replaceRoute, OF_NO_SESSION } from "./route.js";
import { Session } from "./session.js";
import { Sidebar } from "./sidebar.js";
import { text } from "./text.js";

// The way to the inbox, and how much is in it. What finds that out is loaded a little later: a first visit is for what one came for.

const INBOX_MS = 2_000;

class InboxLink {
  // `onChange` is called when there is more or less in it.
  constructor({ onChange }) {
    this.onChange = onChange;
    this.inbox = null;
    this.tally = h("span", { class: "tally", hidden: true });
    this.node = h("a", { class: "tab" }, text.inbox.title, this.tally);
  }

  get count() {
    return this.inbox?.count() ?? "";
  }

  // For the caller of the current key; for none while a key is asked for.
  follow(wanted) {
    this.wanted = wanted;
    this.inbox?.stop();
    this.show();
    clearTimeout(this.waking);
    if (wanted) this.waking = setTimeout(() => this.wake().catch(() => {}), INBOX_MS);
  }

  async wake() {
    const { Inbox } = await import("./inbox.js");
    this.inbox ??= new Inbox({ onChange: () => this.show() });
    if (this.wanted && !this.inbox.wanted) this.inbox.start();
  }

  show() {
    this.tally.textContent = this.count;
    this.tally.hidden = !this.count;
    this.onChange();
  }
}

// Asks for an API key, says when one is not accepted, and whose it is.

const t = text.key;

class KeyDialog {
  constructor({ onChange }) {
    this.onChange = onChange;
    this.field = h("input", { class: "field", id: "api-key", type: "password", autocomplete: "off", spellcheck: "false", "aria-describedby": "key-wrong key-hint" });
    this.wrong = h("p", { class: "reason", id: "key-wrong", role: "alert" });
    this.who = h("p", { dir: "auto" });
    this.keeps = h("input", { type: "checkbox" });
    this.use = button(t.save, { kind: "primary", type: "submit" });
    this.node = h("dialog", { class: "dialog", "aria-labelledby": "key-title" },
      h("form", { onsubmit: (event) => this.submit(event) },
        h("h2", { id: "key-title" }, t.title), this.who,
        h("label", { for: "api-key" }, t.label), this.field, this.wrong,
        h("label", { class: "tick" }, this.keeps, t.remember),
        h("p", { class: "muted", id: "key-hint" }, t.hint),
        h("div", { class: "row" }, this.use, button(t.forget, { onclick: () => this.forget() }), button(text.close, { kind: "ghost", onclick: () => this.node.close() }))));
  }

  open() {
    const name = nameOfMe();
    this.who.textContent = name ? t.youAre(name) : "";
    this.keeps.checked = key.isKept;
    if (!this.node.open) this.node.showModal();
  }

  // The server has refused a request for want of a key, or of one that counts.
  refused() {
    if (this.trying) return;
    this.say(key.get() ? t.gone : "");
    this.open();
  }

  say(words) {
    this.wrong.textContent = words;
    this.field.setAttribute("aria-invalid", words !== "");
  }

  async submit(event) {
    event.preventDefault();
    const given = this.field.value.trim();
    if (!given || this.trying) return this.say(given ? "" : t.empty);
    if (!(await this.isAccepted(given))) return this.field.select();
    key.set(given, { keep: this.keeps.checked });
    this.field.value = "";
    this.say("");
    this.node.close();
    return this.onChange();
  }

  // Tried out before it takes the place of another one, which may be right.
  async isAccepted(given) {
    // No header can carry it, which would look as if the server were away.
    if (!/^[\x21-\x7e]+$/.test(given)) {
      this.say(t.wrong);
      return false;
    }
    this.trying = true;
    this.use.disabled = true;
    try {
      await get("me", { secret: given });
      return true;
    } catch (error) {
      if (error.status === 404) return true;
      this.say(error.code === "unauthenticated" ? t.wrong : error.message);
      return false;
    } finally {
      this.trying = false;
      this.use.disabled = false;
    }
  }

  forget() {
    key.set("");
    for (const name of ["read", "views"]) localStorage.removeItem(`swarmkeep.${name}`);
    forgetDrafts();
    this.field.value = "";
    this.say("");
    this.node.close();
    this.onChange();
  }
}

// Light, dark, or as the system has it.

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

function themeButton() {
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

// What is shown at each kind of address. The chat is there at once, all else is loaded when it is first asked for.

const LOADS = {
  timeline: async () => (await import("./timeline.js")).Timeline,
  agents: async () => (await import("./agents.js")).AgentsView,
  compare: async () => (await import("./compare.js")).Compare,
  inbox: async () => (await import("./inboxview.js")).InboxView,
  runs: async () => (await import("./runs.js")).RunsView,
  usage: async () => (await import("./usage.js")).UsageView,
  audit: async () => (await import("./auditlog.js")).AuditLog,
  webhooks: async () => (await import("./webhooks.js")).WebhooksView,
};
const loaded = { chat: Chat };

const viewOf = (name) => loaded[name] ?? null;

async function loadView(name) {
  loaded[name] ??= await LOADS[name]();
}

// The page put together: what is around both views, and which of them is shown.

const TOAST_MS = 12_000;
const SHORTEST_PAUSE = 500;
const LONGEST_PAUSE = 30_000;

class App {
  constructor() {
    this.agents = [];
    this.locked = false;
    this.session = null;
    // Tabbing out of the menu closes it, so that the focus is in sight.
    this.main = h("main", { id: "main", class: "main", tabindex: -1, onfocusin: () => this.toggleMenu(false) });
    this.live = h("div", { class: "unseen", "aria-live": "polite" });
    this.toasts = h("div", { class: "toasts", role: "alert" });
    this.waiting = new InboxLink({ onChange: () => this.tally() });
    this.sidebar = new Sidebar({ onError: (error) => this.fail(error), onNews: (changed) => this.noteChanges(changed) });
    this.tabs = { inbox: this.waiting.node, chat: h("a", { class: "tab" }, text.nav.chat), timeline: h("a", { class: "tab" }, text.nav.timeline), agents: h("a", { class: "tab" }, text.nav.agents), runs: h("a", { class: "tab" }, text.runs.title), usage: h("a", { class: "tab" }, text.usage.title), compare: h("a", { class: "tab" }, text.compare.title), audit: h("a", { class: "tab", hidden: true }, text.audit.title), webhooks: h("a", { class: "tab", hidden: true }, text.webhooks.title) };
    this.keys = new KeyDialog({ onChange: () => this.start() });
    this.who = h("span", { class: "who", dir: "auto", hidden: true });
    const menu = button(text.nav.menu, { icon: "menu", kind: "ghost menu", quiet: true, "aria-controls": "sessions", "aria-expanded": "false", onclick: () => this.toggleMenu() });
    this.menu = menu;
    document.body.append(
      h("a", { class: "skip", href: "#main", onclick: (event) => this.skip(event) }, text.nav.skip),
      h("header", { class: "top" }, menu, h("a", { class: "brand", href: hrefOf({ view: "chat" }), "aria-label": text.product }, icon("brand"), h("span", {}, text.product)),
        h("nav", { class: "tabs", "aria-label": text.nav.main, onclick: (event) => this.again(event) }, Object.values(this.tabs)),
        h("span", { class: "grow" }),
        h("a", { class: "button ghost docs", href: new URL("docs", document.baseURI) }, text.nav.docs),
        this.who,
        button(text.key.button, { icon: "key", kind: "ghost", quiet: true, onclick: () => this.keys.open() }),
        themeButton()),
      this.sidebar.node, h("div", { class: "veil", onclick: () => this.toggleMenu(false) }), this.main, this.live, this.toasts, this.keys.node,
    );
    needsKey.ask = () => this.keys.refused();
    addEventListener("beforeprint", () => this.view?.log?.all());
    addEventListener("hashchange", () => this.follow());
    addEventListener("keydown", (event) => this.shortcut(event));
  }

  async start() {
    this.session?.close();
    this.session = null;
    await this.find();
    this.route = null;
    this.follow();
  }

  async find() {
    // Who it is counts, also where the agents are not to be had.
    const found = await Promise.allSettled([findMe().then(() => this.sidebar.follow()), this.loadAgents()]);
    const [error] = found.map(({ reason }) => reason).filter(Boolean);
    this.locked = error?.code === "unauthenticated";
    if (error) this.fail(error);
    this.who.textContent = nameOfMe() ?? "";
    this.who.hidden = nameOfMe() === null;
    this.sidebar.lock(this.locked);
    this.waiting.follow(!this.locked);
    this.sidebar.fresh.hidden = !may("run");
    for (const name of ["audit", "webhooks"]) this.tabs[name].toggleAttribute("hidden", this.locked || !may(name));
  }

  askForKey() {
    this.keys.open();
  }

  // The tab of the open view shows what is there by now. What is being written or was scrolled to in a session stays.
  again({ target }) {
    if (!this.route.id && target.closest("a")?.href === location.href) this.reload();
  }

  // Both views of a session, and one after the other, share what was read of it.
  sessionOf(id) {
    if (this.session?.id === id && !this.session.error) return this.session;
    this.session?.close();
    this.session = new Session(id);
    return this.session;
  }

  async loadAgents() {
    const found = [];
    let cursor = null;
    do {
      const page = await get(`agents?limit=200${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`);
      found.push(...page.data);
      cursor = page.next_cursor;
    } while (cursor);
    this.agents = found;
    this.sidebar.setAgents(found.map((agent) => agent.name));
  }

  follow() {
    if (adoptAddress()) this.sidebar.adoptFilters();
    const route = parseRoute();
    const same = this.route && route.view === this.route.view && (route.id === this.route.id || route.view === "inbox") && route.other === this.route.other;
    this.route = route;
    this.showRoute();
    if (same && this.view) this.view.moved?.(route);
    else this.reload();
    this.toggleMenu(false);
  }

  // In the open view, and in its address.
  choose(change) {
    const choices = Object.fromEntries(Object.entries({ ...this.route.choices, ...change }).filter(([, value]) => value));
    this.route = { ...this.route, choices };
    replaceRoute(this.route);
    this.view.moved(this.route);
  }

  showRoute() {
    const { view, id, name: agent } = this.route;
    // From a view without a session the tabs lead back to the open one.
    if (id || !OF_NO_SESSION.has(view)) this.around = id;
    for (const [name, tab] of Object.entries(this.tabs)) {
      tab.href = hrefOf({ view: name, ...(name === "agents" ? { name: agent } : name === "chat" || name === "timeline" ? { id: this.around } : {}) });
      if (name === view) {
        tab.setAttribute("aria-current", "page");
        tab.scrollIntoView({ block: "nearest", inline: "nearest" });
      } else tab.removeAttribute("aria-current");
    }
    this.showTitle(id, agent ?? (this.named?.id === id ? this.named.name : id));
    document.body.dataset.view = view;
    document.body.classList.toggle("with-session", id !== null);
    this.sidebar.show(this.route);
  }

  // The browser's title, and so its history and its tabs, have names before ids, too.
  showTitle(id, name) {
    if (id !== this.route.id) return;
    if (id) this.named = { id, name };
    this.title = [name, text[this.route.view].title, text.product].filter(Boolean).join(" · ");
    this.entitle();
  }

  // The number of waiting sessions comes first: of many tabs a browser shows little more.
  entitle() {
    const { count } = this.waiting;
    const title = `${count ? `(${count}) ` : ""}${this.title ?? text.product}`;
    if (document.title !== title) document.title = title;
  }

  tally() {
    this.entitle();
    if (this.route?.view === "inbox") this.view?.refreshed();
  }

  // What is heard of sessions, as the list hears it.
  noteChanges(changed) {
    this.waiting.inbox?.noteChanges(changed);
    if (this.route?.view === "usage" && changed) this.view?.noteChanges();
  }

  forgetSession(id) {
    this.sidebar.forget(id);
    this.sidebar.load();
  }

  async reload() {
    this.view?.close();
    this.view = null;
    if (this.session && this.session.id !== this.route.id && !OF_NO_SESSION.has(this.route.view)) {
      this.session.close();
      this.session = null;
    }
    const { route } = this;
    const hadFocus = this.main.contains(document.activeElement);
    // What it shows is on its way while the view is loaded.
    if (route.view === "timeline" && route.id) this.sessionOf(route.id);
    if (!viewOf(route.view) && !(await this.loadView(route))) return;
    this.view = new (viewOf(route.view))(this, route);
    clear(this.main, this.view.node);
    if (route.view === "chat" && !route.at) this.view.composer.focus();
    // What had it is gone with the view before, and the keyboard would begin at the top of the page.
    else if (hadFocus && document.activeElement === document.body) this.main.focus({ preventScroll: true });
  }

  // True once the view is loaded, and false when the address names another one. A server that is away is asked again.
  async loadView(route) {
    clear(this.main);
    for (let wait = SHORTEST_PAUSE; route === this.route; wait = Math.min(wait * 2, LONGEST_PAUSE)) {
      try {
        await Promise.all([loadView(route.view), route.view === "inbox" && this.waiting.wake()]);
        return route === this.route;
      } catch {
        if (route === this.route && !this.main.hasChildNodes()) clear(this.main, h("div", { class: "problem", role: "alert" }, h("p", {}, text.viewAway), button(text.reload, { kind: "primary", onclick: () => location.reload() })));
      }
      await pause(wait);
    }
    return false;
  }

  // The view has made its session itself, and goes on showing it.
  adopt(id) {
    this.route = parseRoute(hrefOf({ view: "chat", id }));
    this.showRoute();
  }

  refresh() {
    this.sidebar.feed.read();
  }

  say(words) {
    this.live.append(h("p", {}, words));
    while (this.live.childElementCount > 5) this.live.firstChild.remove();
  }

  // Removes announcements and messages of the earlier key.
  clearMessages() {
    clear(this.live);
    clear(this.toasts);
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
}

const app = new App();
app.start();
