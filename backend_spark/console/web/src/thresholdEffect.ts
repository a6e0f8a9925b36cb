// Effect of a change of thresholds: lines, levels of 72 hours, and the last storms.
import { badge } from "./badges";
import { cellName } from "./names";
import { el, table } from "./dom";
import { formatPeriod, formatTime, t } from "./i18n";
import { snakeChart, type Lines } from "./snakeChart";

interface Storm {
  begin_s: number;
  end_s: number;
  total_mm: number;
  highest_r60_mm: number | null;
  highest_swi_mm: number | null;
  before: number;
  after: number;
  before_s: number | null;
  after_s: number | null;
}

export interface Effect {
  cells: number;
  before: number[];
  after: number[];
  example: string;
  lines: Lines;
  changed: Lines;
  swi_mm: (number | null)[];
  r60_mm: (number | null)[];
  past: { from_s: number | null; rises: { level: number; before: number; after: number }[]; storms: Storm[]; others: number };
}

export function drawEffect(effect: Effect): HTMLElement[] {
  const { past } = effect;
  const counts = [5, 4, 3, 2, 1].map((level) => numbers(badge(level), effect.before[level - 1] ?? 0, effect.after[level - 1] ?? 0));
  const names = [t("before"), t("after")];
  const example = effect.cells > 1 ? [el("p", { class: "hint" }, t("example", { cell: cellName(effect.example) || effect.example }))] : [];
  const isMany = effect.cells > 1;
  const chart = snakeChart({ lines: effect.lines, changed: effect.changed, futures: [], swi_mm: effect.swi_mm, r60_mm: effect.r60_mm, until: effect.swi_mm.length - 1, isPast: false });
  const risen = past.from_s === null ? [el("h3", {}, t("noPast"))] : [el("h3", {}, t("rises", { from: formatTime(past.from_s) })), rises(past.rises), el("p", { class: "hint" }, t("risesHint"))];
  return [
    ...(isMany ? [el("h3", {}, t("effect")), table("narrow counts-72h", [t("levelColumn"), ...names], counts).box] : []),
    ...example,
    el("div", { class: "effect-top" }, chart, el("div", {}, ...risen)),
    ...(past.storms.length ? [el("h3", {}, t("storms")), storms(past)] : []),
  ];
}

function numbers(first: Node, before: number, after: number): HTMLTableRowElement {
  const change = before === after ? "" : before < after ? "more" : "fewer";
  return el("tr", { class: change }, el("td", {}, first), el("td", { class: "number" }, String(before)), el("td", { class: "number" }, String(after)));
}

function rises(found: Effect["past"]["rises"]): HTMLElement {
  const rows = found.map((each) => numbers(badge(each.level), each.before, each.after));
  return table("narrow rises", [t("timesRisen"), t("before"), t("after")], rows).box;
}

function storms(past: Effect["past"]): HTMLElement {
  const mm = (value: number | null) => (value === null ? "–" : `${value.toFixed(0)} mm`);
  const reached = (level: number, at: number | null) => el("td", {}, badge(level), el("small", {}, at === null ? `${t("stormWarning")}: ${t("never")}` : `${t("stormWarning")}: ${formatTime(at)}`));
  const rows = past.storms.map((storm) =>
    el("tr", { class: storm.before === storm.after ? "" : storm.before < storm.after ? "more" : "fewer" }, el("td", {}, formatPeriod(storm.begin_s, storm.end_s)), el("td", {}, mm(storm.total_mm), el("small", {}, `${mm(storm.highest_r60_mm)}/h, ${mm(storm.highest_swi_mm)}`)), reached(storm.before, storm.before_s), reached(storm.after, storm.after_s)),
  );
  const box = table("storms", [t("stormPeriod"), t("stormRain"), t("before"), t("after")], rows).box;
  return el("div", {}, box, past.others ? el("p", { class: "hint" }, t("otherStorms", { n: past.others })) : null);
}
