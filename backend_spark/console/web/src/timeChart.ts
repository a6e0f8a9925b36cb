// Time charts (uPlot) with gaps, limits and marks at flagged points.
import uPlot from "uplot";

import type { LevelLimit } from "./api";
import { el } from "./dom";
import { formatClock, formatDay, t, formatTime } from "./i18n";

export interface Track {
  label: string;
  unit: string;
  colour: string;
  // null: a gap; undefined: another track has a value at this time, this one none.
  values: (number | null | undefined)[];
  // Bars that end at their times.
  bars?: boolean;
  // Filled down to zero.
  area?: boolean;
  // Scale of its own, at the right side.
  right?: boolean;
  flags?: (number | null | undefined)[];
}

export interface Limit {
  label: string;
  value: number;
  colour: string;
}

const LEVEL_COLOURS: Record<number, string> = { 2: "#8f8700", 3: "#e02400", 4: "#aa00aa", 5: "#0c000c" };

// Lines of levels, with their nodes where there are several.
export function levelLimits(pairs: LevelLimit[], whose = ""): Limit[] {
  return pairs.map(([level, value]) => ({ label: `${t("level", { n: level })} ${whose}`.trim(), value, colour: LEVEL_COLOURS[level] ?? "#333" }));
}

interface Chart {
  title: string;
  times: number[];
  tracks: Track[];
  limits?: Limit[];
  marker?: number | null;
  height?: number;
  // Begin and end of the time axis; by default those of the data.
  span?: [number, number];
  // Charts with the same key show the same moment under the pointer.
  sync?: string;
}

const bars = uPlot.paths.bars?.({ size: [0.9, 60], align: -1 });

const charts = new Set<uPlot>();

export function timeChart(chart: Chart): HTMLElement {
  const frame = el("figure", { class: "chart time" }, el("figcaption", {}, chart.title));
  const single = singleValue(chart);
  if (single) {
    frame.append(el("p", { class: "single" }, single));
    return frame;
  }
  const plotArea = el("div", { class: "plot" });
  frame.append(plotArea);
  const limits = chart.limits ?? [];
  const data: uPlot.AlignedData = [
    chart.times,
    ...chart.tracks.map((track) => track.values),
    ...limits.map((limit) => chart.times.map(() => limit.value)),
  ];
  const hasRight = chart.tracks.some((track) => track.right);
  const series: uPlot.Series[] = [
    { label: t("time"), value: (_: uPlot, v: number | null) => (v === null ? "–" : formatTime(v)) },
    ...chart.tracks.map((track) => ({
      label: track.label,
      stroke: track.colour,
      width: track.bars ? 0 : 2,
      scale: track.right ? "right" : "y",
      spanGaps: false,
      ...(track.bars ? { paths: bars } : {}),
      points: track.bars ? { show: false } : { show: true, size: 6, filter: (plot: uPlot, at: number) => isolated(plot.data[at] ?? []) },
      fill: track.bars ? track.colour : track.area ? `${track.colour}55` : undefined,
      value: (_: uPlot, v: number | null) => (v === null ? "–" : `${+v.toPrecision(4)} ${track.unit}`),
    })),
    ...limits.map((limit) => ({ label: `${limit.label} ${limit.value}`, stroke: limit.colour, width: 1.6, dash: [7, 4], points: { show: false }, value: () => "" })),
  ];
  const plot = new uPlot(
    {
      width: 480,
      height: chart.height ?? 150,
      series,
      legend: { live: true },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Asia/Tokyo"),
      cursor: { drag: { x: true, y: false }, ...(chart.sync ? { sync: { key: chart.sync } } : {}) },
      axes: [
        { values: (_, splits) => splits.map((s, at) => (at === 0 || formatClock(s) === "00:00" ? formatDay(s) : formatClock(s))), space: 80 },
        { size: 54 },
        ...(hasRight ? [{ scale: "right", side: 1 as const, size: 54, grid: { show: false } }] : []),
      ],
      scales: { ...(chart.span ? { x: { min: chart.span[0], max: chart.span[1] } } : {}), y: { range: (_, low, high) => yRange(chart.tracks.some((track) => track.bars) ? 0 : low, high, limits) }, ...(hasRight ? { right: { range: (_: uPlot, _low: number, high: number): [number, number] => [0, Math.max(1, high * 1.08)] } } : {}) },
      hooks: { draw: [(u) => drawMarks(u, chart)] },
    },
    data,
    plotArea,
  );
  frame.append(...chart.tracks.map((track) => summary(chart.times, track)));
  charts.add(plot);
  new ResizeObserver(([entry]) => {
    const width = Math.floor(entry?.contentRect.width ?? 0);
    if (width > 100 && width !== plot.width) plot.setSize({ width, height: plot.height });
  }).observe(plotArea);
  return frame;
}

// The chart in words: its newest and its highest value.
function summary(times: number[], track: Track): HTMLElement {
  const known = track.values.flatMap((value, at) => (value === null || value === undefined ? [] : [{ value, time: times[at] ?? 0 }]));
  const last = known[known.length - 1];
  if (!last) return el("p", { class: "summary" }, `${track.label}: ${t("missing")}`);
  const top = known.reduce((high, each) => (each.value > high.value ? each : high), last);
  const words = ({ value, time }: { value: number; time: number }) => `${+value.toPrecision(4)} ${track.unit}（${formatTime(time)}）`;
  return el("p", { class: "summary" }, `${track.label}: ${t("newestHighest", { last: words(last), top: words(top) })}`);
}

// A single value has no axes: its numbers would be made up around it.
function singleValue(chart: Chart): string | null {
  const known = chart.tracks.flatMap(({ unit, values }) => values.flatMap((value, at) => (value === null || value === undefined ? [] : [{ time: chart.times[at] ?? 0, unit, value }])));
  const first = known[0];
  if (!first || known.some(({ time }) => time !== first.time)) return null;
  return t("onePoint", { v: known.map(({ value, unit }) => `${+value.toPrecision(4)} ${unit}`.trim()).join(", "), t: formatTime(first.time) });
}

// Values between gaps, of which no line can be drawn.
function isolated(values: ArrayLike<number | null | undefined>): number[] {
  const own = Array.from({ length: values.length }, (_, at) => at).filter((at) => values[at] !== undefined);
  const has = (place: number) => values[own[place] ?? -1] !== null && values[own[place] ?? -1] !== undefined;
  return own.filter((_, place) => has(place) && !has(place - 1) && !has(place + 1));
}

function yRange(low: number | null, high: number | null, limits: Limit[]): [number, number] {
  const values = [low ?? 0, high ?? 1, ...limits.map((limit) => limit.value)];
  const [min, max] = [Math.min(...values), Math.max(...values)];
  const margin = (max - min) * 0.08 || Math.abs(max) * 0.1 || 1;
  return [min >= 0 && min < margin * 4 ? 0 : min - margin, max + margin];
}

function drawMarks(plot: uPlot, chart: Chart): void {
  const context = plot.ctx;
  const { left, top, height } = plot.bbox;
  context.save();
  for (const track of chart.tracks) {
    track.flags?.forEach((flag, at) => {
      if (!flag || flag < 3) return;
      const value = track.values[at];
      const x = plot.valToPos(chart.times[at] ?? 0, "x", true);
      const y = value === null || value === undefined ? top + height - 8 : plot.valToPos(value, "y", true);
      context.strokeStyle = flag === 4 ? "#c00" : "#b36b00";
      context.lineWidth = 2;
      context.strokeRect(x - 4, y - 4, 8, 8);
    });
  }
  if (chart.marker) {
    const x = plot.valToPos(chart.marker, "x", true);
    if (x >= left) {
      context.strokeStyle = "#00a2ff";
      context.lineWidth = 2;
      context.beginPath();
      context.moveTo(x, top);
      context.lineTo(x, top + height);
      context.stroke();
    }
  }
  context.restore();
}

export function destroyCharts(): void {
  for (const plot of charts) plot.destroy();
  charts.clear();
}
