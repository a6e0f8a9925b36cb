// Charts over time (uPlot): gaps stay gaps, limits are drawn, flagged points are marked.
import uPlot from "uplot";

import { el } from "./dom";
import { clock, day, t, when } from "./words";

export interface Track {
  label: string;
  unit: string;
  colour: string;
  values: (number | null)[];
  bars?: boolean;
}

export interface Limit {
  label: string;
  value: number;
  colour: string;
}

export interface Chart {
  title: string;
  times: number[];
  tracks: Track[];
  limits?: Limit[];
  flags?: (number | null)[];
  marker?: number | null;
  height?: number;
}

const alive = new Set<uPlot>();

export function timeChart(chart: Chart): HTMLElement {
  const frame = el("figure", { class: "chart time" }, el("figcaption", {}, chart.title));
  const room = el("div", { class: "plot" });
  frame.append(room);
  const limits = chart.limits ?? [];
  const data: uPlot.AlignedData = [
    chart.times,
    ...chart.tracks.map((track) => track.values),
    ...limits.map((limit) => chart.times.map(() => limit.value)),
  ];
  const series: uPlot.Series[] = [
    { label: t("time"), value: (_: uPlot, v: number | null) => (v === null ? "–" : when(v)) },
    ...chart.tracks.map((track) => ({
      label: track.label,
      stroke: track.colour,
      width: 2,
      spanGaps: false,
      points: { show: false },
      fill: track.bars ? `${track.colour}55` : undefined,
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
      cursor: { drag: { x: true, y: false } },
      axes: [
        { values: (_, splits) => splits.map((s, at) => (at === 0 || clock(s) === "00:00" ? day(s) : clock(s))), space: 80 },
        { size: 54 },
      ],
      scales: { y: { range: (_, low, high) => span(low, high, limits) } },
      hooks: { draw: [(u) => marks(u, chart)] },
    },
    data,
    room,
  );
  alive.add(plot);
  new ResizeObserver(([entry]) => {
    const width = Math.floor(entry?.contentRect.width ?? 0);
    if (width > 100 && width !== plot.width) plot.setSize({ width, height: plot.height });
  }).observe(room);
  return frame;
}

function span(low: number | null, high: number | null, limits: Limit[]): [number, number] {
  const values = [low ?? 0, high ?? 1, ...limits.map((limit) => limit.value)];
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const room = (most - least) * 0.08 || 1;
  return [least >= 0 && least < room * 4 ? 0 : least - room, most + room];
}

function marks(plot: uPlot, chart: Chart): void {
  const pen = plot.ctx;
  const { left, top, height } = plot.bbox;
  pen.save();
  chart.flags?.forEach((flag, at) => {
    if (flag === null || flag < 3) return;
    const time = chart.times[at] ?? 0;
    const value = chart.tracks[0]?.values[at];
    const x = plot.valToPos(time, "x", true);
    const y = value === null || value === undefined ? top + height - 8 : plot.valToPos(value, "y", true);
    pen.strokeStyle = flag === 4 ? "#c00" : "#b36b00";
    pen.lineWidth = 2;
    pen.strokeRect(x - 4, y - 4, 8, 8);
  });
  if (chart.marker) {
    const x = plot.valToPos(chart.marker, "x", true);
    if (x >= left) {
      pen.strokeStyle = "#00a2ff";
      pen.lineWidth = 2;
      pen.beginPath();
      pen.moveTo(x, top);
      pen.lineTo(x, top + height);
      pen.stroke();
    }
  }
  pen.restore();
}

export function dropCharts(): void {
  for (const plot of alive) plot.destroy();
  alive.clear();
}
