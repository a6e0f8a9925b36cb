// Panel of a cell: level, reasons, snake line, rain, soil water, tilt, nodes, and the way back to their alarms.
import { el, replace } from "./dom";
import { oneAtATime, RETRY_MS, disableWhile, type CellPanel, type NodeState, get, encode, ApiError, type Session, post } from "./api";
import { weekLinks, openSeries } from "./series";
import { destroyCharts, levelLimits, timeChart } from "./timeChart";
import { badge, flagBadge, outputBadge } from "./badges";
import { cellLabel, nodePlace, placeName, placesIn, type Place } from "./names";
import { fetchMoment, fetchSeries, STALE_S, type Moment, type State } from "./state";
import { openTab } from "./tabs";
import { snakeChart } from "./snakeChart";
import { formatAgo, currentLanguage, isHeld, levelMeaning, levelName, NO_JUDGEMENT, sinceWords, t, formatTime, type Key, formatClock, formatSeconds } from "./i18n";


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

interface Order {
  level: number;
  at_s: number;
  until_s: number;
  in_force: boolean;
  withdrawn: boolean;
  held: boolean;
  accepted: { broker: string; at_s: number }[];
}

interface Receipt {
  level: number;
  at_s: number;
  received_s: number | null;
  is_newest: boolean;
}

interface NodeReport {
  id: string;
  reported_s: number | null;
  gateway: string | null;
  outputs: Record<string, string> | null;
  notice: Receipt | null;
  drill: Receipt | null;
}

interface View {
  now_s: number;
  notice: Order | null;
  drill: Order | null;
  nodes: NodeReport[];
  drill_by: string | null;
}

const POLL_MS = 4000;
const HALF_DAY_S = 43_200;
const MINUTES = [1, 3, 5, 10];

// One element for the whole life of the page, since the panel around it is drawn anew.
class WayBack {
  readonly box = el("section", { class: "way-back" });
  private readonly stages = el("div", {});
  private readonly exercise = el("div", { class: "drill" });
  private readonly problem = el("p", { class: "problem", role: "alert" });
  private token = "";
  // Requests that were sent, and the newest one whose answer is not too late.
  private asked = 0;
  private drawn = 0;
  // Cell whose state is on the way.
  private loading = "";

  constructor(private readonly session: Session) {
    replace(this.box, el("h3", {}, t("wayBack")), this.stages, this.exercise, this.problem);
    window.setInterval(() => this.token && this.box.isConnected && void this.load(), POLL_MS);
  }

  show(token: string): void {
    if (token === this.token) return;
    this.token = token;
    this.drawn = this.asked;
    replace(this.stages);
    replace(this.exercise);
    replace(this.problem);
    void this.load();
  }

  private async load(): Promise<void> {
    const { token } = this;
    if (token === this.loading) return;
    this.loading = token;
    const asked = ++this.asked;
    const view = await get<View>(`api/cell/${encode(token)}/way-back`).catch(() => null);
    if (token === this.loading) this.loading = "";
    if (!view || asked <= this.drawn) return;
    this.drawn = asked;
    this.draw(view);
  }

  private draw(view: View): void {
    replace(this.stages, ...this.notice(view));
    // A form that is being filled in stays, and an order that is on the way.
    if (!this.exercise.querySelector("form, :disabled")) replace(this.exercise, ...this.drill(view));
  }

  private notice(view: View): HTMLElement[] {
    const { notice, nodes } = view;
    const silent = notice?.in_force && !notice.accepted.length ? el("li", { class: "late" }, t("notAccepted")) : null;
    const sent = notice?.in_force ? [el("li", { class: "done" }, el("b", {}, t("noticeSent", { level: levelName(notice.level), t: at(notice.at_s) })), ` ${t("validUntil", { t: formatClock(notice.until_s) })}${notice.held ? ` – ${t("noticeHeld")}` : ""}`), ...accepted(notice), silent] : [el("li", {}, t("noNotice"))];
    const rows = nodes.map((node) => el("li", { class: node.outputs ? "" : "none", "data-alarm": node.id }, el("b", {}, node.id), " ", received(node, notice?.in_force ? notice : null, node.notice), outputs(node, view.now_s)));
    return [el("ol", { class: "stages" }, ...sent, ...rows)];
  }

  private drill(view: View): HTMLElement[] {
    const { drill, nodes } = view;
    const canStart = this.session.role === "chief";
    if (drill?.in_force) {
      const button = canStart ? el("button", { type: "button", class: "end-drill", onclick: () => this.send({ end: true }) }, t("endDrill")) : null;
      const rows = nodes.map((node) => el("li", {}, el("b", {}, node.id), " ", received(node, drill, node.drill)));
      return [el("div", { class: "drill-banner", role: "status" }, el("strong", {}, t("drillNow", { level: levelName(drill.level), t: at(drill.until_s) })), el("span", {}, t("notAnAlarm")), button), el("ol", { class: "stages" }, el("li", { class: "done" }, t("drillOrdered", { who: view.drill_by ?? "", t: at(drill.at_s) })), ...accepted(drill), ...rows)];
    }
    const last = drill ? el("p", { class: "hint" }, t("lastDrill", { level: levelName(drill.level), t: at(drill.at_s), who: view.drill_by ?? "" })) : null;
    return [canStart ? el("button", { type: "button", class: "start-drill", onclick: () => this.ask() }, t("startDrill")) : null, last].filter((part): part is NonNullable<typeof part> => part !== null);
  }

  private ask(): void {
    const level = el("select", { name: "drill-level" }, ...[5, 4, 3, 2].map((n) => el("option", { value: n, selected: n === 4 }, levelName(n))));
    const minutes = el("select", { name: "drill-minutes" }, ...MINUTES.map((n) => el("option", { value: n }, t("minutes", { n }))));
    const cancel = el("button", { type: "button", onclick: () => (replace(this.exercise), void this.load()) }, t("back"));
    const form = el("form", { class: "drill-form" }, el("p", {}, t("drillAsk")), el("label", {}, t("levelColumn"), level), el("label", {}, t("duration"), minutes), el("div", { class: "buttons" }, el("button", { type: "submit", class: "start-drill" }, t("startDrillNow")), cancel));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send({ level: Number(level.value), minutes: Number(minutes.value) });
    });
    replace(this.exercise, form);
    form.querySelector("select")?.focus();
  }

  private send(body: object): void {
    void disableWhile(this.exercise, () => this.order(body));
  }

  private async order(body: object): Promise<void> {
    const token = this.token;
    try {
      const view = await post<View>("api/drills", { cell: token, ...body });
      if (token !== this.token) return;
      this.drawn = this.asked;
      replace(this.exercise);
      replace(this.problem);
      this.draw(view);
    } catch (error) {
      if (token === this.token) this.problem.textContent = (error as Error).message;
    }
  }
}

// With the day where a time alone could be taken for one of today.
function at(seconds: number): string {
  return Date.now() / 1000 - seconds > HALF_DAY_S ? formatTime(seconds) : formatSeconds(seconds);
}

function accepted(order: Order): HTMLElement[] {
  return order.accepted.map(({ broker, at_s }) => el("li", { class: "done" }, t("acceptedBy", { broker, t: at(at_s) })));
}

function received(node: NodeReport, order: Order | null, receipt: Receipt | null): HTMLElement | null {
  if (!order) return null;
  if (!receipt?.is_newest) return el("span", { class: "late" }, t(node.outputs ? "notReceived" : "noReport"));
  const time = receipt.received_s ? at(receipt.received_s) : t("beforeRestart");
  return el("span", { class: "received passed" }, t("receivedVia", { gateway: node.gateway ?? "–", t: time }));
}

function outputs(node: NodeReport, nowS: number): HTMLElement {
  if (!node.outputs) return el("span", { class: "hint" }, t("noOutputs"));
  const words = Object.entries(node.outputs).map(([name, state]) => outputBadge(name, state));
  return el("span", { class: "outputs" }, ...words, el("small", {}, t("reportedAt", { t: formatAgo(nowS - (node.reported_s ?? nowS)) })));
}
