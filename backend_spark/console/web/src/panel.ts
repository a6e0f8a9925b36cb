// One cell: level, reasons, snake line, rain, soil water, tilt, and its nodes.
import { el, replace } from "./dom";
import type { CellFacts, NodeFacts } from "./facts";
import { dropCharts, timeChart } from "./lines";
import { badge, flagWord } from "./marks";
import { place } from "./places";
import { momentOf, numbersOf, type Moment } from "./played";
import { get, part, Refused } from "./server";
import { snakeChart } from "./snake";
import type { State } from "./state";
import { ago, chosen, levelMeaning, levelName, NO_JUDGEMENT, t, when, type Key } from "./words";

// Of a cell at a moment of which nothing is known.
const NOTHING: Pick<CellFacts, "latest" | "reasons" | "more" | "futures"> = {
  latest: { at_s: 0, level: null, n_nodes: 0, history_days: null, flags: 0 },
  reasons: [],
  more: {},
  futures: [],
};

export class Panel {
  readonly box = el("section", { class: "panel", "aria-live": "polite" });
  private drawing = false;
  private again = false;
  private shown = "";

  constructor(
    private readonly state: State,
    private readonly pickNode: (id: string) => void,
  ) {}

  // One at a time: while it is played, frames that nobody could see are left out.
  async draw(): Promise<void> {
    this.again = true;
    if (this.drawing) return;
    this.drawing = true;
    try {
      while (this.again) {
        this.again = false;
        await this.drawOnce();
      }
    } finally {
      this.drawing = false;
    }
  }

  private async drawOnce(): Promise<void> {
    const { chosen: token, atS, replay } = this.state;
    if (!token) return;
    const level = this.state.levels()[this.state.cells.tokens.indexOf(token)] ?? 0;
    const [facts, then] = await Promise.all([this.facts(token), atS === null ? null : momentOf(token, atS, replay)]);
    if (token !== this.state.chosen || replay !== this.state.replay) return void (this.again = true);
    const top = this.shown === token ? this.box.scrollTop : 0;
    this.shown = token;
    dropCharts();
    replace(this.box, ...(facts ? this.parts(facts, level, atS, then) : [this.head(token, 0), el("p", { class: "warn" }, t(replay ? "missing" : "noSuchCell"))]));
    this.box.dataset["token"] = token;
    // Who listens to the page wants the present, not every frame of the past.
    this.box.setAttribute("aria-live", atS === null ? "polite" : "off");
    this.box.scrollTop = top;
  }

  private async facts(token: string): Promise<CellFacts | null> {
    const { replay } = this.state;
    if (!replay) return get<CellFacts>(`api/cell/${part(token)}`).catch(unknown);
    const numbers = await numbersOf(token, replay);
    return numbers && { ...numbers, ...NOTHING, nodes: [] };
  }

  private parts(facts: CellFacts, level: number, atS: number | null, then: Moment | null): HTMLElement[] {
    const told = atS === null ? facts : { ...facts, ...NOTHING, ...then };
    const until = atS === null ? facts.swi_mm.length - 1 : Math.round((atS - facts.begin_s) / facts.step_s);
    const isPast = atS !== null;
    const nodes = this.state.replay ? [] : [this.nodes(facts.nodes)];
    return [this.head(facts.token, level), this.why(told, level, atS, then), snakeChart({ ...told, until, isPast }), more(told.more), ...this.charts(facts, atS), ...nodes];
  }

  private head(token: string, level: number): HTMLElement {
    const back = el("button", { type: "button", class: "back", onclick: () => this.state.choose(null) }, `← ${t("back")}`);
    return el("header", {}, back, el("h2", {}, `${t("cell")} `, place(token)), badge(level), el("p", { class: "meaning" }, levelMeaning(level)));
  }

  private why(facts: CellFacts, level: number, atS: number | null, then: Moment | null): HTMLElement {
    const words = level === 0 ? [] : facts.reasons.map((reason) => el("li", {}, reason[chosen()]));
    const { latest } = facts;
    const notes = [
      facts.lines.assumed ? t("assumed") : facts.lines.assumed_line ? t("assumedLine") : null,
      latest.flags & 2 ? t("lowerBound") : null,
      latest.flags & 1 ? t("rainUnknown") : null,
      atS === null ? null : t("linesOfToday"),
      this.state.replay?.known !== "then" && then?.revised_because ? t("revisedLater", { why: then.revised_because }) : null,
      latest.history_days !== null && latest.history_days < 60 ? t("historyDays", { n: Math.floor(latest.history_days * 10) / 10 }) : null,
    ].filter((note): note is string => note !== null);
    const silent = level === 0 && latest.at_s && atS === null ? el("p", { class: "warn" }, `${t("missing")} – ${t("lastSeen")} ${when(latest.at_s)}（${ago((this.state.now?.now_s ?? 0) - latest.at_s)}）`) : null;
    const none = !words.length && level !== 0 && level !== NO_JUDGEMENT ? el("li", {}, t("noReasons")) : null;
    return el(
      "div",
      { class: "why" },
      el("h3", {}, `${t("reasons")} – ${when(latest.at_s || (atS ?? 0))}`),
      silent,
      el("ul", { class: "reasons" }, ...words, none),
      el("ul", { class: "notes" }, ...notes.map((note) => el("li", {}, note))),
    );
  }

  private charts(facts: CellFacts, atS: number | null): HTMLElement[] {
    const times = facts.swi_mm.map((_, at) => facts.begin_s + at * facts.step_s);
    const common = { times, marker: atS };
    const charts = [
      timeChart({ ...common, title: `${t("r60")} (mm)`, height: 120, tracks: [{ label: t("r60"), unit: "mm", colour: "#1565c0", values: facts.r60_mm, bars: true }] }),
      timeChart({
        ...common,
        title: t("swiUnit"),
        tracks: [{ label: t("swi"), unit: "mm", colour: "#0b7285", values: facts.swi_mm }],
        limits: [
          { label: t("advisory"), value: facts.lines.advisory_mm, colour: "#8f8700" },
          { label: t("warning"), value: facts.lines.warning_mm, colour: "#e02400" },
        ],
      }),
    ];
    if (facts.tilt_rate_deg_per_h.some((rate) => rate !== null)) {
      const [low, high] = facts.tilt_deg_per_h;
      const limits = [
        { label: t("level", { n: 3 }), value: low, colour: "#e02400" },
        { label: t("level", { n: 4 }), value: high, colour: "#aa00aa" },
      ];
      charts.push(timeChart({ ...common, title: `${t("tilt")} (°/h)`, limits, tracks: [{ label: t("tilt"), unit: "°/h", colour: "#5d4037", values: facts.tilt_rate_deg_per_h }] }));
    }
    charts.push(el("p", { class: "hint" }, t("chartMissing")));
    return charts;
  }

  private nodes(nodes: NodeFacts[]): HTMLElement {
    const now = this.state.now?.now_s ?? 0;
    const rows = nodes.map((node) =>
      el(
        "li",
        {},
        el("button", { type: "button", class: "pick", "data-node": node.id, onclick: () => this.pickNode(node.id) }, el("i", { class: `node ${node.state}` }), el("b", {}, node.id), ` ${t(node.state as Key)} `, flagWord(node.flag), el("span", { class: "ago" }, ago(now - node.at_s))),
      ),
    );
    return el("div", {}, el("h3", {}, t("nodesHere")), rows.length ? el("ul", { class: "cells" }, ...rows) : el("p", {}, t("noNodes")));
  }
}

function unknown(error: unknown): null {
  if (error instanceof Refused && error.status === 404) return null;
  throw error;
}

function more(numbers: CellFacts["more"]): HTMLElement {
  const said = (value: number | null | undefined, unit: string, scale = 1) => (value === null || value === undefined ? null : `${(value * scale).toFixed(1)} ${unit}`);
  const effective = [said(numbers.effective_1h5_mm, "mm"), said(numbers.effective_72h_mm, "mm")];
  const rows: [Key, string | null][] = [
    ["margin", said(numbers.margin_mm, "mm")],
    ["effective", effective.every((word) => word === null) ? null : effective.map((word) => word ?? "–").join(" / ")],
    ["moisture", said(numbers.moisture_percentile, "%")],
    ["pore", said(numbers.pore_percentile, "%")],
    ["official", numbers.official_level ? levelName(numbers.official_level) : null],
    ["completeness", said(numbers.completeness, "%", 100)],
  ];
  return el("dl", { class: "facts" }, ...rows.filter(([, words]) => words !== null).flatMap(([name, words]) => [el("dt", {}, t(name)), el("dd", {}, words)]));
}
