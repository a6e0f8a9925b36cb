// Overview: the highest level, the number of cells at each level, and a list of cells.
import { el, replace } from "./dom";
import { LEVELS_BY_SEVERITY, swatch } from "./levelPatterns";
import { badge, NODE_STATES } from "./badges";
import { cellLabel } from "./cellNames";
import type { State } from "./state";
import { formatAgo, isHeld, levelMeaning, levelName, severity, t, formatTime } from "./i18n";

const MAX_LISTED = 200;

export class Overview {
  readonly box = el("section", { class: "overview" });

  constructor(private readonly state: State) {}

  draw(): void {
    const { state } = this;
    const levels = state.levels();
    const counts = new Map<number, number>();
    for (const level of levels) counts.set(level, (counts.get(level) ?? 0) + 1);
    const highest = LEVELS_BY_SEVERITY.find((each) => counts.get(each)) ?? 0;
    const head = el("div", { class: "headline" }, el("h2", {}, this.what()), badge(highest), el("p", {}, levelMeaning(highest)));
    replace(this.box, head, this.counts(counts, levels.length), this.list(levels), ...(state.replay ? [] : [this.nodes()]), ...(state.replay?.known === "then" ? [] : [this.files()]));
  }

  private what(): string {
    const { assumed, atS } = this.state;
    if (assumed) return t("highestIf");
    return atS === null ? t("highest") : `${t("highestThen")} ${formatTime(atS)}`;
  }

  private counts(counts: Map<number, number>, all: number): HTMLElement {
    const rows = LEVELS_BY_SEVERITY.filter((each) => !isHeld(each) || counts.get(each)).map((each) => {
      const count = counts.get(each) ?? 0;
      const bar = el("meter", { min: 0, max: Math.max(1, all), value: count, "aria-hidden": "true" });
      return el("li", { "data-look": each }, swatch(each), el("span", { class: "name" }, levelName(each)), bar, el("b", {}, String(count)));
    });
    return el("div", {}, el("h3", {}, t("cellsByLevel")), el("ul", { class: "counts" }, ...rows));
  }

  private list(levels: number[]): HTMLElement {
    const { tokens } = this.state.cells;
    const found = tokens.map((token, at) => ({ token, level: levels[at] ?? 0, seen: this.present(this.state.now?.seen_s, at), known: this.present(this.state.now?.known_s, at) }));
    const urgent = found.filter(({ level }) => severity(level) >= 2).sort((a, b) => severity(b.level) - severity(a.level) || a.token.localeCompare(b.token));
    const shown = urgent.length ? urgent : found.slice(0, 20);
    const now = this.state.now?.now_s ?? 0;
    const items = shown.slice(0, MAX_LISTED).map(({ token, level, seen, known }) =>
      el(
        "li",
        {},
        el("button", { type: "button", class: "pick", "data-token": token, onclick: () => this.state.select(token) }, badge(level, known), cellLabel(token), el("span", { class: "ago" }, seen ? formatAgo(now - seen) : "")),
      ),
    );
    return el("div", {}, el("h3", {}, `${t("attention")}（${urgent.length}）`), urgent.length ? null : el("p", {}, this.calm(levels)), el("ul", { class: "cells" }, ...items));
  }

  // Times belong to the present; the past shows none.
  private present(times: number[] | undefined, at: number): number {
    return this.state.atS === null && !this.state.assumed ? (times?.[at] ?? 0) : 0;
  }

  // That no criterion is reached can be said only where every cell is judged.
  private calm(levels: number[]): string {
    const unknown = levels.filter((level) => level < 1 || level > 5).length;
    const silent = this.state.atS === null ? (this.state.now?.nodes["silent"] ?? 0) : 0;
    return unknown || silent ? t("someUnknown", { n: unknown, m: silent }) : t("noCriterionReached");
  }

  private files(): HTMLElement {
    const { atS } = this.state;
    const at = atS === null ? "" : `?at=${atS}`;
    const link = (name: string, file: string) => el("a", { href: `api/download/${file}${at}`, download: "", "data-file": file }, name);
    return el("div", {}, el("h3", {}, t("downloads")), el("ul", { class: "files" }, el("li", {}, link(t("geojson"), "levels.geojson")), el("li", {}, link(t("capDraft"), "draft.xml"))));
  }

  private nodes(): HTMLElement {
    const counts = this.state.now?.nodes ?? {};
    const items = NODE_STATES.map((name) => el("li", {}, el("i", { class: `node ${name}` }), `${t(name)} `, el("b", {}, String(counts[name] ?? 0))));
    return el("div", {}, el("h3", {}, t("nodeCount")), el("ul", { class: "states" }, ...items));
  }
}
