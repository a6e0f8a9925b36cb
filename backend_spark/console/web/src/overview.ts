// Overview: the highest level, the number of cells at each level, districts, and the list
// of cells by level, margin to the next level and households; CAP messages.
import { el, replace } from "./dom";
import { highestOf, LEVELS_BY_SEVERITY, swatch, badge, highestBadge, NODE_STATES, unknownWords } from "./badges";
import { allPlaces, cellLabel, cellName, householdsIn, type Place } from "./names";
import { ageOf, STALE_S, type State } from "./state";
import { causeWords, formatAgo, formatHours, formatTime, isHeld, levelMeaning, levelName, severity, sinceWords, t } from "./i18n";
import { presentLevel } from "./slider";
import { openTab } from "./tabs";
import { disableWhile, ApiError, encode, get, post } from "./api";

const MAX_LISTED = 200;
const MAX_NAMED = 3;
const MAX_DISTRICTS = 50;

interface Row {
  token: string;
  level: number;
  seen: number;
  known: number;
  since: number;
  margin: number | null;
  causes: string[];
}

export class Overview {
  readonly box = el("section", { class: "overview" });

  // Kept by token, so that a button stays the same while its words change.
  private readonly picks = new Map<string, HTMLElement>();

  private readonly cap = new CapMessages();

  // Events of nodes outside all cells, and of messages that came before the next judgement, are in no level of a cell.
  private readonly waiting = el("button", { type: "button", class: "waiting", onclick: () => openTab("events") });

  constructor(private readonly state: State) {
    state.addEventListener("events", () => this.showWaiting());
  }

  draw(): void {
    const { state } = this;
    const levels = state.levels();
    const counts = new Map<number, number>();
    for (const level of levels) counts.set(level, (counts.get(level) ?? 0) + 1);
    const highest = highestOf(levels);
    const causes = state.causesOf((at) => levels[at] === highest);
    const meaning = state.atS === null && highest !== 1 ? levelMeaning(highest, causes) : "";
    const rows = this.rows(levels);
    const begins = rows.filter(({ level, since }) => level === highest && since).map(({ since }) => since);
    const since = begins.length && !isHeld(highest) ? sinceWords(Math.min(...begins), state.now?.now_s ?? 0) : "";
    const head = el("div", { class: "headline" }, this.waiting, el("h2", {}, this.what()), highestBadge(levels, this.silent()), since ? el("span", { class: "since" }, since) : null, this.where(rows, highest), el("p", {}, meaning), this.presentLevel());
    this.showWaiting();
    const focused = document.activeElement;
    replace(this.box, this.unjudged(), head, this.counts(counts, levels.length), this.list(rows, levels), this.districts(rows), ...(state.replay ? [] : [this.nodes()]), ...(state.replay?.known === "then" ? [] : [this.files(), this.cap.box]));
    if (focused instanceof HTMLElement && this.box.contains(focused)) focused.focus({ preventScroll: true });
  }

  // Above a level that is lower, so that this one is not read as the highest.
  private showWaiting(): void {
    const { events, atS, assumed } = this.state;
    this.waiting.hidden = !events?.count || atS !== null || !!assumed;
    if (!events || this.waiting.hidden) return;
    this.waiting.classList.toggle("warn", events.peak > severity(highestOf(this.state.present())));
    this.waiting.textContent = t("eventsWaiting", { n: events.count, level: levelName(events.peak) });
  }

  // Where the highest level is, the most urgent cells first.
  private where(rows: Row[], highest: number): HTMLElement | null {
    if (severity(highest) < 2) return null;
    const found = rows.filter(({ level }) => level === highest).sort(byUrgency);
    const names = found.slice(0, MAX_NAMED).map(({ token }) => cellName(token) || token);
    const more = found.length > MAX_NAMED ? ` ${t("andMoreCells", { n: found.length - MAX_NAMED })}` : "";
    return el("b", { class: "where" }, names.join(t("listSeparator")) + more);
  }

  private what(): string {
    const { assumed, atS } = this.state;
    if (assumed) return t("highestIf");
    return atS === null ? t("highest") : `${t("highestThen")} ${formatTime(atS)}`;
  }

  // While the past is shown; a replay and assumed rain have it in their own banner.
  private presentLevel(): HTMLElement | null {
    const { atS, replay } = this.state;
    return atS === null || replay ? null : el("p", { class: "present-level" }, ...presentLevel(this.state));
  }

  // Whether there is any judgement of the present: without one no calm is stated.
  private unjudged(): HTMLElement | null {
    const { now, atS } = this.state;
    if (!now || atS !== null) return null;
    const age = ageOf(now);
    const present = this.state.present();
    if (age <= STALE_S && present.some((level) => level >= 1 && level <= 5)) return null;
    const words = now.newest_s === null ? t("cannotJudgeYet") : t("cannotJudge", { t: formatTime(now.newest_s), m: formatHours(age) });
    return el("p", { class: "warn unjudged" }, words);
  }

  private counts(counts: Map<number, number>, all: number): HTMLElement {
    const rows = LEVELS_BY_SEVERITY.filter((each) => !isHeld(each) || counts.get(each)).map((each) => {
      const count = counts.get(each) ?? 0;
      const bar = el("meter", { min: 0, max: Math.max(1, all), value: count, "aria-hidden": "true" });
      return el("li", { "data-level": each }, swatch(each), el("span", { class: "name" }, levelName(each)), bar, el("b", {}, String(count)));
    });
    return el("div", {}, el("h3", {}, t("cellsByLevel")), el("ul", { class: "counts" }, ...rows));
  }

  private rows(levels: number[]): Row[] {
    const { now, cells } = this.state;
    return cells.tokens.map((token, at) => ({
      token,
      level: levels[at] ?? 0,
      seen: this.present(now?.seen_s, at) ?? 0,
      known: this.present(now?.known_s, at) ?? 0,
      since: this.present(now?.since_s, at) ?? 0,
      margin: this.present(now?.margin_mm, at) ?? null,
      causes: (this.present(now?.causes, at) ?? "").split(" ").filter(Boolean),
    }));
  }

  private list(rows: Row[], levels: number[]): HTMLElement {
    const urgent = rows.filter(({ level }) => severity(level) >= 2).sort(byUrgency);
    const shown = urgent.length ? urgent : rows.slice(0, 20);
    const items = shown.slice(0, MAX_LISTED).map((row) => this.item(row));
    return el("div", {}, el("h3", {}, `${t("attention")}（${urgent.length}）`), urgent.length ? null : el("p", {}, this.calm(levels)), el("ul", { class: "cells" }, ...items));
  }

  private item({ token, level, known, since, margin, causes, seen }: Row): HTMLElement {
    const nowS = this.state.now?.now_s ?? 0;
    const households = householdsIn(token);
    const facts = [
      since && !isHeld(level) ? sinceWords(since, nowS) : "",
      level > 1 && !isHeld(level) ? causeWords(level, causes) : "",
      margin !== null && !isHeld(level) ? t("nextLevel", { n: Math.round(margin) }) : "",
      households ? t("householdsOf", { n: households }) : "",
      seen && !since ? formatAgo(nowS - seen) : "",
    ].filter(Boolean);
    const pick = this.picks.get(token) ?? el("button", { type: "button", class: "pick", "data-token": token, onclick: () => this.state.select(token) });
    this.picks.set(token, pick);
    replace(pick, badge(level, known), cellLabel(token), el("span", { class: "ago" }, facts.join(" · ")));
    return el("li", {}, pick);
  }

  // Districts with a cell that reaches a criterion, the highest level first.
  private districts(rows: Row[]): HTMLElement | null {
    if (!allPlaces().length) return null;
    const levels = new Map(rows.filter(({ level }) => severity(level) >= 2).map(({ token, level }) => [token, level]));
    const found = rollUp(levels);
    if (!found.length) return null;
    const items = found.slice(0, MAX_DISTRICTS).map(({ name, level, households }) => el("li", {}, badge(level), el("b", {}, name), el("span", { class: "ago" }, households ? t("householdsOf", { n: households }) : "")));
    return el("div", {}, el("h3", {}, t("byDistrict")), el("ul", { class: "districts" }, ...items));
  }

  // Times and causes belong to the present; the past shows none.
  private present<T>(values: T[] | undefined, at: number): T | undefined {
    return this.state.atS === null && !this.state.assumed ? values?.[at] : undefined;
  }

  // That no criterion is reached can be said only where every cell is judged.
  private calm(levels: number[]): string {
    if (!levels.length) return t("noData");
    return unknownWords(levels, this.silent()) || t("noCriterionReached");
  }

  private silent(): number {
    return this.state.atS === null ? (this.state.now?.nodes["silent"] ?? 0) : 0;
  }

  // A draft of CAP states the present; a moment of the past has none.
  private files(): HTMLElement {
    const { atS } = this.state;
    const at = atS === null ? "" : `?at=${atS}`;
    const link = (name: string, file: string) => el("a", { href: `api/download/${file}${at}`, download: "", "data-file": file }, name);
    const draft = this.noDraft() || link(t("capDraft"), "draft.xml");
    return el("div", {}, el("h3", {}, t("downloads")), el("ul", { class: "files" }, el("li", {}, link(t("geojson"), "levels.geojson")), atS === null ? el("li", {}, draft) : null));
  }

  // Why there is no draft, empty if there is one: a link to a file shows no answer that refuses it.
  private noDraft(): string {
    const levels = this.state.present();
    if (!levels.some((level) => severity(level) && !isHeld(level))) return t("capNoJudgement");
    return levels.some((level) => severity(level) >= 2) ? "" : t("capNoLevel");
  }

  private nodes(): HTMLElement {
    const counts = this.state.now?.nodes ?? {};
    const items = NODE_STATES.map((name) => el("li", {}, el("i", { class: `node ${name}` }), `${t(name)} `, el("b", {}, String(counts[name] ?? 0))));
    return el("div", {}, el("h3", {}, t("nodeCount")), el("ul", { class: "states" }, ...items));
  }
}

function order(level: number): number {
  return LEVELS_BY_SEVERITY.indexOf(level);
}

function byUrgency(a: Row, b: Row): number {
  const margin = ({ margin }: Row) => margin ?? Infinity;
  const [one, other] = [margin(a), margin(b)];
  return order(a.level) - order(b.level) || (one === other ? 0 : one - other) || householdsIn(b.token) - householdsIn(a.token) || a.token.localeCompare(b.token);
}

// The highest level of each district, and the households of its places at that level.
function rollUp(levels: Map<string, number>): { name: string; level: number; households: number }[] {
  const towns = new Set(allPlaces().map((place) => place.town));
  const found = new Map<string, { place: Place; level: number }[]>();
  for (const place of allPlaces()) {
    const shown = place.cells.flatMap((cell) => levels.get(cell) ?? []).sort((a, b) => order(a) - order(b))[0];
    if (shown === undefined) continue;
    const name = towns.size > 1 ? `${place.town} ${place.district}` : place.district;
    found.set(name, [...(found.get(name) ?? []), { place, level: shown }]);
  }
  const rows = [...found].map(([name, places]) => {
    const level = places.map((each) => each.level).sort((a, b) => order(a) - order(b))[0] ?? 0;
    const households = places.filter((each) => each.level === level).reduce((sum, { place }) => sum + (place.households ?? 0), 0);
    return { name, level, households };
  });
  return rows.sort((a, b) => order(a.level) - order(b.level) || b.households - a.households);
}

type Kind = "Alert" | "Update" | "Cancel";

interface Message {
  identifier: string;
  type: Kind;
  status: string;
  title: string;
  who: string;
  at_s: number;
}

interface View {
  may_edit: boolean;
  in_force: string | null;
  messages: Message[];
}

const SHOWN = 5;
// Status of a request that names another message than the one in force.
const CHANGED = 412;

// One element for the whole life of the page: the overview around it is drawn anew each second.
class CapMessages {
  readonly box = el("details", { class: "cap", ontoggle: () => void this.open() }, el("summary", {}, t("capMessages")));
  private readonly content = el("div", {});

  constructor() {
    this.box.append(this.content);
  }

  private async open(): Promise<void> {
    if (this.box.open) await this.load();
  }

  private async load(): Promise<void> {
    try {
      this.draw(await get<View>("api/cap"));
    } catch (error) {
      this.fail((error as Error).message);
    }
  }

  private fail(words: string): void {
    this.content.querySelector(".problem")?.remove();
    this.content.append(el("p", { class: "problem", role: "alert" }, words));
  }

  private draw(view: View): void {
    const kinds: Kind[] = view.in_force === null ? ["Alert"] : ["Update", "Cancel"];
    const buttons = kinds.map((kind) => el("button", { type: "button", "data-cap": kind, onclick: () => void disableWhile(this.content, () => this.make(kind, view.in_force)) }, t(`cap${kind}`)));
    const rows = view.messages.slice(0, SHOWN).map((each) => {
      const link = el("a", { href: `cap/${encode(each.identifier)}.xml`, download: "" }, `${t(`cap${each.type}Name`)} ${formatTime(each.at_s)}`);
      return el("li", { "data-type": each.type }, link, el("small", {}, ` ${t(each.status === "Exercise" ? "capExerciseStatus" : "capDraftStatus")} – ${each.who}`), el("div", {}, each.title));
    });
    const state = el("p", {}, view.in_force === null ? t("capNone") : t("capInForce", { id: view.in_force }));
    const feed = el("p", {}, el("a", { href: "cap/feed.atom" }, t("capFeed")));
    replace(this.content, el("p", { class: "hint" }, t("capHint")), state, view.may_edit ? el("div", { class: "form" }, ...buttons) : el("p", { class: "hint" }, t("needsAnalyst")), el("ul", { class: "files" }, ...rows), feed);
  }

  // What it replaces is the message that is shown, not one that somebody else has made meanwhile.
  private async make(kind: Kind, replaces: string | null): Promise<void> {
    if (kind === "Cancel" && !confirm(t("capCancelAsk"))) return;
    try {
      this.draw(await post<View>("api/cap", { type: kind, replaces }));
    } catch (error) {
      const isOther = error instanceof ApiError && error.status === CHANGED;
      if (isOther) await this.load();
      this.fail(isOther ? t("capChanged") : lacking(kind, error));
    }
  }
}

// Why no message can be made of the levels; the server names the options of a command.
function lacking(kind: Kind, error: unknown): string {
  const needs = error instanceof ApiError ? error.needs : "";
  if (needs === "judgement") return t("capNoJudgement");
  if (needs === "level") return t(kind === "Update" ? "capNoUpdate" : "capNoLevel");
  return (error as Error).message;
}
