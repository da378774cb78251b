// Sessions that need attention: those that wait for people or programs, those whose last run failed or was interrupted and that are
// not marked as seen since, and those that were found damaged, until they are repaired. The mark is the session's metadata `seen_seq`,
// which all readers share.

import { get, patch, segment, sessionPath } from "./api.js";
import { text } from "./text.js";
import { sessionTitle } from "./session.js";

// What the server is asked for. Of those that wait all may be too many: the ones that do so for longest come first.
const ASKED = {
  waiting: { status: "waiting", order: "oldest_activity" },
  failed: { last_run: "failed" },
  interrupted: { last_run: "interrupted" },
  damaged: { damaged: "true" },
};
const CARES = Object.keys(ASKED);
const CARE_PAGE = 200;
const CARE_PAGES = 5;
const LOOK_MS = 2_000;
// A hidden tab has no stream, so it asks.
const HIDDEN_LOOK_MS = 30_000;
const AGAIN_MS = 10_000;
const NOTIFY = "swarmkeep.notify";
const MOST_NOTES = 3;

function careOf({ status, last_run_status: ended, damaged_seq: damaged }) {
  if (damaged !== undefined) return "damaged";
  if (status === "waiting") return status;
  return status === "idle" && ["failed", "interrupted"].includes(ended) ? ended : null;
}

// Those that wait come first, the oldest of them before the others.
const byUrgency = (one, other) => (one.care !== "waiting") - (other.care !== "waiting") || (one.session.updated_at < other.session.updated_at ? -1 : 1);

const nameOfCare = ({ session, care }) => `${session.id} ${care} ${session.active_run_id ?? session.seq}`;

export class Inbox {
  // `onChange` is called when there is something else to show.
  constructor({ onChange }) {
    this.onChange = onChange;
    this.cares = CARES;
    this.stop();
    document.addEventListener("visibilitychange", () => this.expect(document.hidden ? HIDDEN_LOOK_MS : 0));
  }

  // For the caller of the current key.
  start() {
    this.stop();
    this.wanted = true;
    this.expect(0);
  }

  stop() {
    clearTimeout(this.due);
    this.due = null;
    this.wanted = false;
    this.turn = null;
    this.again = false;
    this.items = null;
    this.more = {};
    this.error = null;
    this.judged = new Map();
    this.known = null;
  }

  // As the list of sessions hears it: what some are now, or null where it is to be read.
  noteChanges(changed) {
    const held = new Set(this.items?.map(({ session }) => session.id));
    if (changed === null || [...changed.values()].some((session) => careOf(session) || held.has(session.id))) this.expect(LOOK_MS);
  }

  // Looks within that time, or earlier if that was to be.
  expect(ms) {
    if (!this.wanted) return;
    const at = performance.now() + ms;
    if (this.due && this.dueAt <= at) return;
    clearTimeout(this.due);
    this.dueAt = at;
    this.due = setTimeout(() => this.look(), ms);
  }

  async look() {
    clearTimeout(this.due);
    this.due = null;
    if (this.turn) return (this.again = true);
    const turn = (this.turn = {});
    try {
      const counts = await get("counts");
      const there = CARES.filter((care) => (care === "damaged" ? counts.damaged : (counts.status[care] ?? counts.last_run[care])).count);
      const found = await Promise.all(there.map((care) => this.read(care)));
      if (turn !== this.turn || !this.wanted) return;
      this.more = Object.fromEntries(there.map((care, index) => [care, found[index].more]));
      // One that changed meanwhile may have been read twice.
      this.items = [...new Map(found.flatMap(({ items }) => items).map((item) => [item.session.id, item])).values()].sort(byUrgency);
      this.error = null;
      this.tell();
    } catch (error) {
      if (turn !== this.turn || !this.wanted) return;
      this.error = error;
      if (error.status === 401) return this.stop();
    } finally {
      if (turn === this.turn) this.turn = null;
    }
    if (this.again) this.expect(LOOK_MS);
    this.again = false;
    if (this.error) this.expect(AGAIN_MS);
    if (document.hidden) this.expect(HIDDEN_LOOK_MS);
    this.onChange();
  }

  async read(care) {
    const items = [];
    let cursor = null;
    for (let page = 0; page < CARE_PAGES; page += 1) {
      const query = new URLSearchParams({ limit: String(CARE_PAGE), ...ASKED[care], ...(cursor && { cursor }) });
      const found = await get(`sessions?${query}`);
      for (const session of found.data) if (careOf(session) === care) items.push({ session, care, seen: await this.isSeen(session, care) });
      cursor = found.next_cursor;
      if (!cursor) break;
    }
    return { items, more: cursor !== null };
  }

  // True if the failed run had ended when the session was marked. Most often the mark is the last event.
  async isSeen(session, care) {
    const noted = session.metadata?.seen_seq;
    if (care === "waiting" || care === "damaged" || !Number.isInteger(noted)) return false;
    if (noted >= session.seq - 1) return true;
    const name = `${session.id} ${session.seq}`;
    if (!this.judged.has(name)) {
      const { data } = await get(sessionPath(session.id, "/runs?limit=1"));
      this.judged.set(name, data.length > 0 && data[0].last_seq <= noted);
    }
    return this.judged.get(name);
  }

  // The count of sessions that need attention, of one kind or of all; with a "+" where not all were checked.
  count(care = null) {
    const count = this.items?.filter((item) => !item.seen && (!care || item.care === care)).length ?? 0;
    return count && (care ? this.more[care] : Object.values(this.more).some(Boolean)) ? `${count.toLocaleString("en")}+` : count ? count.toLocaleString("en") : "";
  }

  async mark({ session }, seen) {
    await patch(sessionPath(session.id), { metadata: { seen_seq: seen ? session.seq : null } });
    const item = this.items?.find((one) => one.session.id === session.id);
    if (item) item.seen = seen;
    this.onChange();
    this.expect(LOOK_MS);
  }

  // Notifications.

  get canNotify() {
    return "Notification" in window;
  }

  get notifies() {
    return this.canNotify && Notification.permission === "granted" && localStorage.getItem(NOTIFY) === "on";
  }

  // Whether they are on now. Only a click leads here: browsers ask at no other time, and people should not be asked either.
  async notify(on) {
    if (!on) localStorage.removeItem(NOTIFY);
    else if ((await Notification.requestPermission()) === "granted") localStorage.setItem(NOTIFY, "on");
    return this.notifies;
  }

  // What is new since the last look. Nothing is in it but what a session is called, and why.
  tell() {
    const now = new Map(this.items.filter(({ seen }) => !seen).map((item) => [nameOfCare(item), item]));
    const fresh = this.known ? [...now].filter(([name]) => !this.known.has(name)).map(([, item]) => item) : [];
    this.known = new Set(now.keys());
    if (!fresh.length || !this.notifies || (!document.hidden && document.hasFocus())) return;
    if (fresh.length > MOST_NOTES) return this.note(text.inbox.several(fresh.length), "", "#/inbox", "swarmkeep");
    for (const { session, care } of fresh) this.note(sessionTitle(session), text.inbox.reasons[care], `#/chat/${segment(session.id)}`, session.id);
  }

  note(title, body, hash, tag) {
    // On phones pages may not make them by themselves.
    try {
      const note = new Notification(title, { body, tag });
      note.onclick = () => {
        focus();
        location.hash = hash;
        note.close();
      };
    } catch {
      localStorage.removeItem(NOTIFY);
    }
  }
}
