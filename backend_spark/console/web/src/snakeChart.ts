// Snake line as SVG: soil water index on the x axis, 60-minute rain on the y axis.
import { el, svg } from "./dom";
import { levelName, t, type Key } from "./i18n";

export interface Lines {
  r60_mm: number[];
  // null: a level that the prefecture does not judge.
  critical_mm: (number | null)[];
  warning_mm: number | null;
  advisory_mm: number | null;
  special_mm: number | null;
  // Where the criterion depends on the rain; null: the same at any rain.
  advisory_line_mm: (number | null)[] | null;
  special_line_mm: (number | null)[] | null;
  not_judged: number[];
  assumed: boolean;
  assumed_line: boolean;
}

export interface Future {
  name: string;
  r60_mm: number[];
  swi_mm: number[];
  level: number;
}

export interface Snake {
  lines: Lines;
  futures: Future[];
  swi_mm: (number | null)[];
  r60_mm: (number | null)[];
  until: number;
  isPast: boolean;
  // Criteria to preview; the present ones are then pale.
  changed?: Lines;
}

const WIDTH = 520;
const HEIGHT = 300;
const LEFT = 46;
const RIGHT = 14;
const TOP = 12;
const BOTTOM = 40;
const MAX_PAST_STEPS = 432;

const LINES: ["advisory_mm" | "warning_mm" | "special_mm", Key, string, string][] = [
  ["advisory_mm", "advisory", "#8f8700", "2 4"],
  ["warning_mm", "warning", "#e02400", "7 4"],
  ["special_mm", "special", "#0c000c", "1 3"],
];

const FUTURES: Record<string, string> = { none: "#2f7d32", same: "#8d4a00", given: "#6a1b9a" };

export function snakeChart(snake: Snake): HTMLElement {
  const { futures } = snake;
  const lines = snake.changed ?? snake.lines;
  const points = path(snake);
  // Scaled to the whole span, so that the axes stay fixed during a replay.
  const swiTop = roundUp(Math.max(lines.special_mm ?? highest([...lines.critical_mm, lines.warning_mm, lines.advisory_mm]), snake.lines.special_mm ?? 0, highest(snake.swi_mm), ...futures.flatMap((f) => f.swi_mm)) * 1.06, 50);
  const r60Top = roundUp(Math.max(60, highest(snake.r60_mm), ...futures.flatMap((f) => f.r60_mm)) * 1.15, 20);
  const x = (swi: number) => LEFT + (swi / swiTop) * (WIDTH - LEFT - RIGHT);
  const y = (r60: number) => HEIGHT - BOTTOM - (r60 / r60Top) * (HEIGHT - TOP - BOTTOM);
  const line = (pairs: [number, number][]) => pairs.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ");
  const chart = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "snake", "aria-label": t("snake") });
  axes(chart, x, y, swiTop, r60Top);
  const draw = (limits: Lines, opacity: number) => {
    const overRain = (byRain: (number | null)[]) => limits.r60_mm.flatMap((r, at): [number, number][] => (byRain[at] === null || byRain[at] === undefined || r > r60Top ? [] : [[byRain[at], r]]));
    for (const [key, , colour, dash] of LINES) {
      const limit = limits[key];
      const byRain = key === "special_mm" ? limits.special_line_mm : key === "advisory_mm" ? limits.advisory_line_mm : null;
      const style = { fill: "none", stroke: colour, "stroke-width": 2, "stroke-dasharray": dash, opacity };
      if (byRain) chart.append(svg("polyline", { points: line(overRain(byRain)), ...style }));
      else if (limit !== null) chart.append(svg("line", { x1: x(limit), x2: x(limit), y1: TOP, y2: HEIGHT - BOTTOM, ...style }));
    }
    chart.append(svg("polyline", { points: line(overRain(limits.critical_mm)), fill: "none", stroke: "#aa00aa", "stroke-width": 3.5, opacity }));
  };
  if (snake.changed) draw(snake.lines, 0.3);
  draw(lines, 1);
  chart.append(svg("polyline", { points: line(points), fill: "none", stroke: "#1565c0", "stroke-width": 2.2, "stroke-linejoin": "round", class: "past" }));
  const last = points[points.length - 1];
  if (last) {
    for (const future of futures) {
      const run = future.swi_mm.map((s, at): [number, number] => [s, future.r60_mm[at] ?? 0]);
      const colour = FUTURES[future.name] ?? "#555";
      chart.append(svg("polyline", { points: line([last, ...run]), fill: "none", stroke: colour, "stroke-width": 2.4, "stroke-dasharray": "5 3" }));
      const end = run[run.length - 1];
      if (end) chart.append(svg("path", { d: arrow(x(end[0]), y(end[1])), fill: colour }));
    }
    chart.append(svg("circle", { cx: x(last[0]), cy: y(last[1]), r: 6, fill: "#ffd000", stroke: "#222", "stroke-width": 1.6, class: "present" }));
  }
  const pale = snake.changed ? el("p", { class: "hint" }, t("paleLines")) : null;
  return el("figure", { class: "chart" }, el("figcaption", {}, t("snake")), chart as unknown as HTMLElement, legend(snake), pale);
}

function path(snake: Snake): [number, number][] {
  const points: [number, number][] = [];
  for (let at = Math.max(0, snake.until - MAX_PAST_STEPS); at <= snake.until; at++) {
    const swi = snake.swi_mm[at];
    const r60 = snake.r60_mm[at];
    if (swi !== null && swi !== undefined && r60 !== null && r60 !== undefined) points.push([swi, r60]);
  }
  return points;
}

function highest(values: (number | null)[]): number {
  return values.reduce((max: number, value) => Math.max(max, value ?? 0), 0);
}

function legend({ futures, isPast, lines }: Snake): HTMLElement {
  const named = (level: number, name: Key) => (lines.not_judged.includes(level) ? `${t(name)} (${t("notJudged")})` : t(name));
  const items: [string, string][] = [
    ["critical", named(4, "criticalShort")],
    ["warning", named(3, "warning")],
    ["advisory", named(2, "advisory")],
    ["special", named(5, "special")],
    ["past", t("past")],
    ["present", t(isPast ? "thisMoment" : "present")],
    ...futures.map((f): [string, string] => [`future-${f.name}`, `${t(`future_${f.name}` as Key)} → ${levelName(f.level)}`]),
  ];
  return el("ul", { class: "key" }, ...items.map(([name, words]) => el("li", {}, el("i", { class: `line ${name}` }), words)));
}

function axes(chart: SVGElement, x: (v: number) => number, y: (v: number) => number, swiTop: number, r60Top: number): void {
  for (let swi = 0; swi <= swiTop; swi += 50) {
    chart.append(svg("line", { x1: x(swi), x2: x(swi), y1: TOP, y2: HEIGHT - BOTTOM, class: "grid" }));
    chart.append(svg("text", { x: x(swi), y: HEIGHT - BOTTOM + 15, "text-anchor": "middle" }, String(swi)));
  }
  for (let r60 = 0; r60 <= r60Top; r60 += 20) {
    chart.append(svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(r60), y2: y(r60), class: "grid" }));
    chart.append(svg("text", { x: LEFT - 6, y: y(r60) + 4, "text-anchor": "end" }, String(r60)));
  }
  chart.append(svg("text", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 6, "text-anchor": "middle", class: "axis" }, t("swiUnit")));
  const middle = (HEIGHT - BOTTOM) / 2;
  chart.append(svg("text", { x: 13, y: middle, "text-anchor": "middle", class: "axis", transform: `rotate(-90 13 ${middle})` }, t("r60Unit")));
}

function arrow(x: number, y: number): string {
  return `M${x - 4} ${y - 4} L${x + 4} ${y} L${x - 4} ${y + 4} Z`;
}

function roundUp(value: number, step: number): number {
  return Math.ceil(value / step) * step;
}
