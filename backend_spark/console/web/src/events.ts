// Events of the slopes: a page of them with filters, decisions about many at once, and hand-over notes.
import { el, replace } from "./dom";
import { disableWhile, oneAtATime, RETRY_MS, discardDraft, keepDraft, get, isConflict, post, type Session } from "./api";
import { badge } from "./badges";
import { CAUSES } from "./state";
import { attentionSwitches } from "./attention";
import { currentLanguage, formatTime, fromDateField, t, type Key } from "./i18n";
import { placeOf, reasonsOf, stateOf, timesOf, STATES, type EventRow, type EventState, showEvent, Notifications } from "./eventWindow";

interface Page {
  revision: number;
  total: number;
  states: Record<EventState, number>;
  events: EventRow[];
}

interface Note {
  at_s: number;
  who: string;
  text: string;
}

const PAGE_ROWS = 50;
// Width below which an event is a card.
const SMALL_PX = 900;
// Time to see that rows have moved, before a click counts again.
const MOVED_MS = 500;

export async function drawEvents(container: HTMLElement, session: Session): Promise<void> {
  const page = new EventsPage(session);
  replace(container, page.box);
  await page.load();
}

// Rows are kept and changed in place, so that a fresh list takes away neither the focus nor what is being written.
class EventsPage {
  private readonly canEdit: boolean;
  // Of the last decision; a list that is fetched anew does not take it away.
  private readonly refused = el("p", { class: "problem", role: "alert" });
  private readonly problem = el("p", { class: "problem", role: "alert" });
  private readonly body = el("tbody", {});
  private readonly count = el("p", { class: "hint", role: "status" });
  private readonly rows = new Map<number, Row>();
  private readonly chosen = new Map<number, number>();
  private readonly bulk: HTMLElement;
  private readonly text = el("input", { type: "search", name: "text", placeholder: t("eventFind"), "aria-label": t("eventFind"), maxlength: 100 });
  private readonly level = el("select", { name: "level", "aria-label": t("levelColumn") }, ...[0, 4, 5].map((n) => el("option", { value: n }, n ? t("eventFromLevel", { n }) : t("eventAllLevels"))));
  private readonly cause = el("select", { name: "cause", "aria-label": t("reasons") }, el("option", { value: "" }, t("eventAllCauses")), ...CAUSES.map((cause) => el("option", { value: cause }, t(`cause_${cause}` as Key))));
  private readonly since = el("input", { type: "datetime-local", name: "since" });
  private readonly until = el("input", { type: "datetime-local", name: "until" });
  private readonly all = el("input", { type: "checkbox", "aria-label": t("eventSelectAll"), onchange: () => this.chooseAll(this.all.checked) });
  private readonly states = el("div", { class: "chips", role: "group", "aria-label": t("state") });
  private readonly back = el("button", { type: "button", onclick: () => this.turn(-1) }, t("eventNewer"));
  private readonly on = el("button", { type: "button", class: "older", onclick: () => this.turn(1) }, t("eventOlder"));
  private readonly notes = el("ul", { class: "notes-list" });
  private readonly notifications: Notifications;
  private wanted: EventState | "" = "open";
  private offset = 0;
  private again = 0;
  private moved = 0;
  // One request at a time; a change meanwhile is fetched afterwards.
  readonly load = oneAtATime(() => this.fetch());
  readonly box: HTMLElement;

  constructor(private readonly session: Session) {
    this.canEdit = session.role === "analyst" || session.role === "chief";
    this.bulk = this.bulkForm();
    this.notifications = new Notifications(session);
    for (const field of [this.text, this.level, this.cause, this.since, this.until]) field.addEventListener("input", () => this.restart());
    const fields = el("div", { class: "form filters" }, this.text, this.level, this.cause, el("label", {}, t("from"), this.since), el("label", {}, t("until"), this.until));
    // On a small screen the events come first.
    const filters = el("details", { open: innerWidth > SMALL_PX }, el("summary", {}, t("eventFilters")), fields);
    const names: Key[] = ["levelColumn", "eventWhere", "eventWhen", "reasons", "state"];
    const head = el("tr", {}, el("th", { scope: "col" }, this.canEdit ? this.all : null), ...names.map((name) => el("th", { scope: "col" }, t(name))), el("td", {}));
    const table = el("table", { class: "list event-list" }, el("thead", {}, head), this.body);
    const pages = el("div", { class: "pages" }, this.back, this.count, this.on);
    const handover = el("a", { href: `handover?lang=${currentLanguage()}`, target: "_blank", rel: "noopener" }, `${t("handover")} ↗`);
    const list = el("section", {}, el("h2", {}, t("events")), this.canEdit ? null : el("p", { class: "hint" }, t("needsAnalyst")), attentionSwitches(), this.states, filters, this.refused, this.problem, this.canEdit ? this.bulk : null, table, pages);
    this.box = el("div", { class: "events-page" }, list, el("section", {}, el("h2", {}, t("note")), handover, this.canEdit ? this.noteForm() : null, this.notes, this.notifications.box));
    const refresh = () => (this.box.isConnected ? void this.load() : removeEventListener("yamamori-events", refresh));
    addEventListener("yamamori-events", refresh);
  }

  private query(): string {
    const query = new URLSearchParams({ limit: String(PAGE_ROWS), offset: String(this.offset) });
    const fields = { state: this.wanted, text: this.text.value, level: this.level.value, cause: this.cause.value };
    for (const [name, value] of Object.entries(fields)) if (value) query.set(name, value);
    for (const field of [this.since, this.until]) if (field.value) query.set(field.name, String(fromDateField(field.value)));
    return query.toString();
  }

  private async fetch(): Promise<void> {
    clearTimeout(this.again);
    try {
      const [page, notes] = await Promise.all([get<Page>(`api/events?${this.query()}`), get<Note[]>("api/notes"), this.notifications.load()]);
      this.show(page);
      this.showNotes(notes);
      replace(this.problem);
    } catch (error) {
      this.problem.textContent = (error as Error).message;
      this.again = window.setTimeout(() => this.box.isConnected && void this.load(), RETRY_MS);
    }
  }

  private restart(): void {
    this.offset = 0;
    void this.load();
  }

  private turn(pages: number): void {
    this.offset = Math.max(0, this.offset + pages * PAGE_ROWS);
    void this.load();
  }

  private show(page: Page): void {
    if (this.offset >= page.total && this.offset > 0) {
      this.offset = Math.max(0, Math.floor((page.total - 1) / PAGE_ROWS) * PAGE_ROWS);
      void this.load();
      return;
    }
    this.showStates(page.states);
    const before = [...this.body.children];
    const shown = page.events.map((event) => this.row(event));
    const numbers = new Set(page.events.map((event) => event.number));
    for (const number of this.rows.keys()) if (!numbers.has(number)) this.drop(number);
    shown.forEach((row, at) => this.body.children[at] === row.line || this.body.insertBefore(row.line, this.body.children[at] ?? null));
    if (before.some((line, at) => line.isConnected && this.body.children[at] !== line)) this.holdClicks();
    const last = Math.min(page.total, this.offset + page.events.length);
    this.count.textContent = page.total ? t("eventPage", { first: this.offset + 1, last, total: page.total }) : t("noEvents");
    this.back.disabled = this.offset === 0;
    this.on.disabled = last >= page.total;
    this.box.dataset["total"] = String(page.total);
    this.showBulk();
  }

  // A click may have been meant for the row that stood here before.
  private holdClicks(): void {
    clearTimeout(this.moved);
    this.body.classList.add("moved");
    this.moved = window.setTimeout(() => this.body.classList.remove("moved"), MOVED_MS);
  }

  private drop(number: number): void {
    this.rows.get(number)?.line.remove();
    this.rows.delete(number);
    this.chosen.delete(number);
  }

  private row(event: EventRow): Row {
    let row = this.rows.get(event.number);
    if (!row) {
      const { number } = event;
      row = new Row(number, this.canEdit, (on, asked) => (on ? this.chosen.set(number, asked) : this.chosen.delete(number), this.showBulk()), (asked) => this.decide(new Map([[number, asked]]), "acknowledged", ""), () => showEvent(number, this.session, this.canEdit));
      this.rows.set(number, row);
    }
    row.update(event);
    return row;
  }

  private showStates(states: Record<EventState, number>): void {
    const all = Object.values(states).reduce((sum, n) => sum + n, 0);
    const choices: [EventState | "", string][] = [["", `${t("eventAll")} ${all}`], ...STATES.map((state): [EventState, string] => [state, `${t(`state_${state}`)} ${states[state]}`])];
    if (!this.states.children.length) {
      const choose = (state: EventState | "") => ((this.wanted = state), this.restart());
      replace(this.states, ...choices.map(([state]) => el("button", { type: "button", "data-state": state || "all", onclick: () => choose(state) })));
    }
    choices.forEach(([state, words], at) => {
      const button = this.states.children[at];
      if (!button) return;
      button.textContent = words;
      button.setAttribute("aria-pressed", String(this.wanted === state));
    });
  }

  private chooseAll(on: boolean): void {
    for (const row of this.rows.values()) row.choose(on);
  }

  private showBulk(): void {
    this.bulk.hidden = this.chosen.size === 0;
    const words = this.bulk.querySelector("b");
    if (words) words.textContent = t("eventsChosen", { n: this.chosen.size });
  }

  private bulkForm(): HTMLElement {
    const state = el("select", { name: "bulk-state", "aria-label": t("state") }, ...STATES.slice(1).map((each) => el("option", { value: each }, t(`state_${each}`))));
    const remark = el("input", { name: "bulk-remark", placeholder: t("remark"), "aria-label": t("remark"), maxlength: 2000 });
    keepDraft(remark, this.session, "bulk");
    const form = el("form", { class: "form bulk", hidden: true }, el("b", {}), state, remark, el("button", { class: "primary", type: "submit" }, t("eventDecide")));
    form.addEventListener("submit", (submitted) => {
      submitted.preventDefault();
      const sent = remark.value;
      void disableWhile(form, async () => {
        if (await this.decide(new Map(this.chosen), state.value as EventState, sent)) discardDraft(remark, this.session, "bulk", sent);
      });
    });
    return form;
  }

  private async decide(events: Map<number, number>, state: EventState, text: string): Promise<boolean> {
    replace(this.refused);
    // The choice of other events stays.
    const loadUnchosen = async () => {
      this.all.checked = false;
      for (const number of events.keys()) this.rows.get(number)?.choose(false);
      await this.load();
    };
    try {
      await post("api/events/state", { events: [...events.keys()], seen: [...events.values()], state, text });
      await loadUnchosen();
      return true;
    } catch (error) {
      this.refused.textContent = isConflict(error) ? t("eventChanged") : (error as Error).message;
      if (isConflict(error)) await loadUnchosen();
      return false;
    }
  }

  private noteForm(): HTMLElement {
    const text = el("textarea", { "aria-label": t("note"), maxlength: 2000 });
    keepDraft(text, this.session, "note");
    const refused = el("p", { class: "problem", role: "alert" });
    const form = el("form", { class: "note" }, text, el("button", { class: "primary", type: "submit" }, t("write")), refused);
    const send = async () => {
      const sent = text.value;
      replace(refused);
      try {
        this.showNotes(await post<Note[]>("api/notes", { text: sent }));
        discardDraft(text, this.session, "note", sent);
      } catch (error) {
        refused.textContent = (error as Error).message;
      }
    };
    form.addEventListener("submit", (submitted) => {
      submitted.preventDefault();
      void disableWhile(form, send);
    });
    return form;
  }

  private showNotes(notes: Note[]): void {
    const items = notes.map((line) => el("li", {}, el("small", {}, `${line.who} – ${formatTime(line.at_s)}`), line.text));
    replace(this.notes, ...(items.length ? items : [el("li", {}, t("noNotes"))]));
  }
}

class Row {
  private readonly check: HTMLInputElement;
  private readonly cells = ["eventLevel", "eventWhere", "eventWhen", "eventWhy", "eventState"].map((name) => el("td", { class: name }));
  private readonly acknowledge: HTMLButtonElement;
  private shown = "";
  private asked = 0;
  readonly line: HTMLTableRowElement;

  constructor(number: number, canEdit: boolean, choose: (on: boolean, asked: number) => void, acknowledge: (asked: number) => Promise<unknown>, open: () => void) {
    this.check = el("input", { type: "checkbox", "aria-label": t("eventSelect"), onchange: () => choose(this.check.checked, this.asked) });
    this.acknowledge = el("button", { type: "button", class: "primary acknowledge", onclick: () => void disableWhile(this.acknowledge, () => acknowledge(this.asked)) }, t("acknowledge"));
    const details = el("button", { type: "button", class: "details", onclick: open }, t("eventDetails"));
    const buttons = el("td", { class: "eventButtons" }, canEdit ? this.acknowledge : null, details);
    this.line = el("tr", { "data-event": number }, el("td", { class: "eventCheck" }, canEdit ? this.check : null), ...this.cells, buttons);
  }

  choose(on: boolean): void {
    if (this.check.checked !== on) this.check.click();
  }

  update(event: EventRow): void {
    const shown = JSON.stringify(event);
    if (shown === this.shown) return;
    this.shown = shown;
    this.asked = event.asked;
    const [level, where, when, why, state] = this.cells;
    if (!level || !where || !when || !why || !state) return;
    replace(level, badge(event.peak));
    replace(where, placeOf(event));
    replace(when, ...timesOf(event));
    replace(why, ...reasonsOf(event));
    replace(state, ...stateOf(event));
    this.line.dataset["state"] = event.state;
    this.acknowledge.hidden = event.state !== "open";
  }
}
