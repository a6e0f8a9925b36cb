// Panel of a cell: level, reasons, snake line, rain, soil water, tilt, nodes.
import { el, replace } from "./dom";
import { oneAtATime, RETRY_MS } from "./actions";
import { weekLinks } from "./rowLinks";
import { type CellPanel, type NodeState, get, encode, ApiError, type Session } from "./api";
import { destroyCharts, levelLimits, timeChart } from "./timeChart";
import { badge, flagBadge } from "./badges";
import { cellLabel, nodePlace, placeName, placesIn, type Place } from "./names";
import { fetchMoment, fetchSeries, type Moment } from "./replayData";
import { openSeries } from "./series";
import { WayBack } from "./wayBack";
import { openTab } from "./tabs";
import { snakeChart } from "./snakeChart";
import type { State } from "./state";
import { formatAgo, currentLanguage, isHeld, levelMeaning, levelName, NO_JUDGEMENT, sinceWords, t, formatTime, type Key } from "./i18n";

const STALE_S = 1800;

// State of a cell at a time without data.
const NO_DATA: Pick<CellPanel, "latest" | "reasons" | "causes" | "chance" | "more" | "futures"> = {
  latest: { at_s: 0, level: null, n_nodes: 0, history_days: null, flags: 0, state: "unknown", known_until_s: null },
  reasons: [],
  causes: [],
  chance: [],
  more: {},
  futures: [],
};

export class Panel {
  readonly box = el("section", { class: "panel", "aria-live": "polite" });
  private again = 0;
  private shown = "";
  // In a fast replay the frames in between are skipped.
  readonly draw = oneAtATime(() => this.drawOnce());
  private readonly wayBack: WayBack;

  constructor(
    private readonly state: State,
    private readonly openNode: (id: string) => void,
    session: Session,
  ) {
    this.wayBack = new WayBack(session);
  }

  private async drawOnce(): Promise<void> {
    clearTimeout(this.again);
    const { selected: token } = this.state;
    if (!token) return;
    if (token !== this.shown) this.begin(token, el("p", { class: "hint" }, t("loading")));
    try {
      await this.fetchAndShow(token);
    } catch (error) {
      if (token !== this.state.selected) return void this.draw();
      if (token !== this.shown) this.begin(token, el("p", { class: "problem", role: "alert" }, (error as Error).message));
      this.again = window.setTimeout(() => token === this.state.selected && void this.draw(), RETRY_MS);
    }
  }

  // Never another cell below the name of this one, while its data are on the way or if they fail.
  private begin(token: string, words: HTMLElement): void {
    this.shown = "";
    destroyCharts();
    replace(this.box, this.head(token, this.levelOf(token)), words);
    delete this.box.dataset["token"];
  }

  private levelOf(token: string): number {
    return this.state.levels()[this.state.cells.tokens.indexOf(token)] ?? 0;
  }

  private async fetchAndShow(token: string): Promise<void> {
    const { atS, replay } = this.state;
    const level = this.levelOf(token);
    const [facts, then] = await Promise.all([this.fetchPanel(token), atS === null ? null : fetchMoment(token, atS, replay)]);
    if (token !== this.state.selected || replay !== this.state.replay) return void this.draw();
    const top = this.shown === token ? this.box.scrollTop : 0;
    const focused = document.activeElement;
    this.shown = token;
    destroyCharts();
    replace(this.box, ...(facts ? this.parts(facts, level, atS, then) : [this.head(token, 0), el("p", { class: "warn" }, t(replay ? "missing" : "noSuchCell"))]));
    if (focused instanceof HTMLElement && document.activeElement !== focused) this.findSame(focused)?.focus({ preventScroll: true });
    this.box.dataset["token"] = token;
    // Screen readers announce the present, not every frame of the past.
    this.box.setAttribute("aria-live", atS === null ? "polite" : "off");
    this.box.scrollTop = top;
  }

  // The element of the panel that was drawn anew, or that of the way back, which is kept.
  private findSame(before: HTMLElement): HTMLElement | undefined {
    const mark = ({ tagName, className, dataset }: HTMLElement) => JSON.stringify([tagName, className, { ...dataset }]);
    return this.box.contains(before) ? before : [...this.box.querySelectorAll<HTMLElement>("a, button")].find((each) => mark(each) === mark(before));
  }

  private async fetchPanel(token: string): Promise<CellPanel | null> {
    const { replay } = this.state;
    if (!replay) return get<CellPanel>(`api/cell/${encode(token)}`).catch(nullIfNotFound);
    const numbers = await fetchSeries(token, replay);
    return numbers && { ...numbers, ...NO_DATA, nodes: [] };
  }

  private parts(facts: CellPanel, level: number, atS: number | null, then: Moment | null): HTMLElement[] {
    const panel = atS === null ? facts : { ...facts, ...NO_DATA, ...then };
    const until = atS === null ? facts.swi_mm.length - 1 : Math.round((atS - facts.begin_s) / facts.step_s);
    const isPast = atS !== null;
    const nodes = this.state.replay ? [] : [this.nodes(facts.nodes)];
    const wayBack = isPast || this.state.replay ? [] : [this.wayBack.box];
    if (wayBack.length) this.wayBack.show(facts.token);
    const knownS = panel.latest.known_until_s ?? panel.latest.at_s;
    return [this.head(facts.token, level, knownS, panel.causes), this.reasons(panel, level, atS, then), ...wayBack, snakeChart({ ...panel, until, isPast }), measures(panel.more), ...this.charts(facts, atS), ...nodes, weekLinks("levels", { cell: facts.token }, atS ?? this.state.now?.now_s ?? 0)];
  }

  private head(token: string, level: number, knownS = 0, causes: string[] = []): HTMLElement {
    const back = el("button", { type: "button", class: "back", onclick: () => this.state.select(null) }, `← ${t("back")}`);
    const since = this.since(token, level);
    return el("header", {}, back, el("h2", {}, `${t("cell")} `, cellLabel(token)), badge(level, knownS), since ? el("span", { class: "since" }, since) : null, el("p", { class: "meaning" }, levelMeaning(level, causes)), el("button", { type: "button", class: "open-thresholds", onclick: () => openTab("thresholds") }, t("thresholdsHere")), ...placesIn(token).map(placeFacts));
  }

  private since(token: string, level: number): string {
    const { now, atS, assumed, cells } = this.state;
    const sinceS = now?.since_s[cells.tokens.indexOf(token)] ?? 0;
    return now && sinceS && atS === null && !assumed && !isHeld(level) ? sinceWords(sinceS, now.now_s) : "";
  }

  private reasons(facts: CellPanel, level: number, atS: number | null, then: Moment | null): HTMLElement {
    const words = level === 0 ? [] : facts.reasons.map((reason) => el("li", {}, reason[currentLanguage()]));
    const { latest } = facts;
    const notes = [
      facts.lines.assumed ? t("assumed") : facts.lines.assumed_line ? t("assumedLine") : null,
      facts.lines.not_judged.length ? t("notJudgedHere", { levels: facts.lines.not_judged.join(", ") }) : null,
      latest.flags & 2 ? t("lowerBound") : null,
      latest.flags & 1 ? t("rainUnknown") : null,
      atS === null ? null : t("linesAreCurrent"),
      this.state.replay?.known !== "then" && then?.revised_because ? t("revisedLater", { why: then.revised_because }) : null,
      latest.history_days !== null && latest.history_days < 60 ? t("historyDays", { n: Math.floor(latest.history_days * 10) / 10 }) : null,
    ].filter((note): note is string => note !== null);
    const age = (this.state.now?.now_s ?? 0) - latest.at_s;
    const silent = (level === 0 || (isHeld(level) && age > STALE_S)) && latest.at_s && atS === null ? el("p", { class: "warn" }, `${t("missing")} – ${t("lastSeen")} ${formatTime(latest.at_s)}（${formatAgo(age)}）`) : null;
    const none = !words.length && level !== 0 && level !== NO_JUDGEMENT ? el("li", {}, t("noReasons")) : null;
    return el(
      "div",
      { class: "why" },
      el("h3", {}, `${t("reasons")} – ${formatTime(latest.at_s || (atS ?? 0))}`),
      silent,
      el("ul", { class: "reasons" }, ...words, none),
      facts.chance.length ? el("p", { class: "chance" }, facts.chance.map((sentence) => sentence[currentLanguage()]).join(" ")) : null,
      el("ul", { class: "notes" }, ...notes.map((note) => el("li", {}, note))),
    );
  }

  private charts(facts: CellPanel, atS: number | null): HTMLElement[] {
    const times = facts.swi_mm.map((_, at) => facts.begin_s + at * facts.step_s);
    const common = { times, marker: atS };
    const charts = [
      timeChart({ ...common, title: `${t("r60")} (mm)`, height: 120, tracks: [{ label: t("r60"), unit: "mm", colour: "#1565c0", values: facts.r60_mm, area: true }] }),
      timeChart({
        ...common,
        title: t("swiUnit"),
        tracks: [{ label: t("swi"), unit: "mm", colour: "#0b7285", values: facts.swi_mm }],
        limits: [
          { label: t("advisory"), value: facts.lines.advisory_mm, colour: "#8f8700" },
          { label: t("warning"), value: facts.lines.warning_mm, colour: "#e02400" },
        ].flatMap(({ value, ...limit }) => (value === null ? [] : [{ ...limit, value }])),
      }),
    ];
    if (facts.tilt_rate_deg_per_h.some((rate) => rate !== null)) {
      charts.push(timeChart({ ...common, title: `${t("tilt")} (°/h)`, limits: levelLimits(facts.tilt_limits), tracks: [{ label: t("tilt"), unit: "°/h", colour: "#5d4037", values: facts.tilt_rate_deg_per_h }] }));
    }
    charts.push(el("p", { class: "hint" }, t("chartMissing")));
    return charts;
  }

  private nodes(nodes: NodeState[]): HTMLElement {
    const now = this.state.now?.now_s ?? 0;
    const rows = nodes.map((node) =>
      el(
        "li",
        {},
        el("button", { type: "button", class: "pick", "data-node": node.id, onclick: () => this.openNode(node.id) }, el("i", { class: `node ${node.state}` }), el("b", {}, node.id), nodePlace(node.id) && ` ${nodePlace(node.id)}`, ` ${t(node.state as Key)} `, flagBadge(node.flag), el("span", { class: "ago" }, formatAgo(now - node.at_s))),
      ),
    );
    const open = el("button", { type: "button", class: "open-series", onclick: () => openSeries(nodes.map((node) => node.id)) }, t("seriesOfCell"));
    return el("div", {}, el("h3", {}, t("nodesHere")), nodes.length ? open : null, rows.length ? el("ul", { class: "cells" }, ...rows) : el("p", {}, t("noNodes")));
  }
}

function placeFacts(place: Place): HTMLElement {
  const rows: [Key, string][] = [
    ["placeName", `${place.town} ${placeName(place)}`.trim()],
    ["households", place.households === null ? "" : String(place.households)],
    ["shelter", place.shelter],
    ["contact", place.contact],
  ];
  return el("dl", { class: "facts place" }, ...rows.filter(([, words]) => words).flatMap(([name, words]) => [el("dt", {}, t(name)), el("dd", {}, words)]));
}

function nullIfNotFound(error: unknown): null {
  if (error instanceof ApiError && error.status === 404) return null;
  throw error;
}

function measures(numbers: CellPanel["more"]): HTMLElement {
  const format = (value: number | null | undefined, unit: string, scale = 1) => (value === null || value === undefined ? null : `${(value * scale).toFixed(1)} ${unit}`);
  const effective = [format(numbers.effective_1h5_mm, "mm"), format(numbers.effective_72h_mm, "mm")];
  const rows: [Key, string | null][] = [
    ["margin", format(numbers.margin_mm, "mm")],
    ["effective", effective.every((word) => word === null) ? null : effective.map((word) => word ?? "–").join(" / ")],
    ["moisture", format(numbers.moisture_percentile, "%")],
    ["pore", format(numbers.pore_percentile, "%")],
    ["official", numbers.official_level ? levelName(numbers.official_level) : null],
    ["completeness", format(numbers.completeness, "%", 100)],
  ];
  return el("dl", { class: "facts" }, ...rows.filter(([, words]) => words !== null).flatMap(([name, words]) => [el("dt", {}, t(name)), el("dd", {}, words)]));
}
