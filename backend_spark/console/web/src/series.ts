// Series of nodes over a range: rain with its totals, readings, movement, doubtful readings; links to their rows.
import { el, replace, table } from "./dom";
import { flagBadge } from "./badges";
import { fetchNodes, nodePlace, sensorName, unitName } from "./names";
import { get, type LevelLimit, type Reason } from "./api";
import { destroyCharts, levelLimits, timeChart, type Limit, type Track } from "./timeChart";
import { currentLanguage, formatTime, t, type Key } from "./i18n";

const WEEK_S = 7 * 86400;

export interface Rows {
  table: "levels" | "silver" | "sensors";
  cell?: string;
  nodes?: readonly string[];
  fromS: number;
  toS: number;
}

function rowLinks(title: string, rows: Rows): HTMLElement {
  const items = (["csv", "parquet"] as const).flatMap((form) =>
    (["JST", "UTC"] as const).map((zone) => {
      const query = new URLSearchParams({ table: rows.table, from_s: String(rows.fromS), to_s: String(rows.toS), zone });
      if (rows.cell) query.set("cell", rows.cell);
      for (const node of rows.nodes ?? []) query.append("node", node);
      return el("li", {}, el("a", { href: `api/download/rows.${form}?${query}`, download: "", "data-rows": `${form}-${zone}` }, `${form === "csv" ? "CSV" : "Parquet"}${t(zone === "JST" ? "inJapanTime" : "inUtc")}`));
    }),
  );
  return el("div", {}, el("h3", {}, title), el("ul", { class: "files" }, ...items));
}

// Links to the rows of the last week before a time.
export function weekLinks(table: "levels" | "silver", place: { cell: string } | { node: string }, atS: number): HTMLElement {
  const toS = Math.ceil(atS / 600) * 600;
  const where = "cell" in place ? place : { nodes: [place.node] };
  return rowLinks(t("lastWeek"), { table, ...where, fromS: toS - WEEK_S, toS });
}

interface Rain {
  begin_s: number;
  depth_mm: (number | null)[];
  cumulative_mm: (number | null)[];
  totals: { hours: number; mm: number; known: number; doubted_mm: number }[];
}

interface Readings {
  name: string;
  unit: string | null;
  at_s: number[];
  value: number[];
  flag: (number | null)[];
}

type Rate = "tilt_rate_deg_per_h" | "velocity_mm_per_h" | "inverse_h_per_mm" | "angle_deg";

interface Movement extends Record<Rate, (number | null)[]> {
  sensor: string;
  steady_mm_per_h: number | null;
  at_s: number[];
}

interface Run {
  name: string;
  unit: string | null;
  flag: number;
  from_s: number;
  to_s: number;
  count: number;
  low: number;
  high: number;
  reasons: Reason[];
}

interface NodeSeries {
  node: string;
  cell: string | null;
  tilt_limits: LevelLimit[];
  rain: Rain | null;
  readings: Readings[];
  movement: Movement[];
  flagged: Run[];
}

interface Series {
  begin_s: number;
  end_s: number;
  step_s: number;
  velocity_limits: LevelLimit[];
  angles_deg: [number, number];
  nodes: NodeSeries[];
}

const HOURS = [6, 12, 24, 72, 168, 720];
const MAX_NODES = 6;
const MAX_OPTIONS = 50;
const COLOURS = ["#1565c0", "#b3541e", "#2f7d32", "#6a1b9a", "#0b7285", "#8a1538"];
const GAP_S = 3600;
const MINE_S = 600;

let chosen: string[] = [];
let hours = 24;
let hourly: boolean | null = null;
let preset: () => readonly string[] = () => [];

// Nodes that the page shows when none were chosen.
export function presetNodes(nodes: () => readonly string[]): void {
  preset = nodes;
}

export function openSeries(nodes: readonly string[]): void {
  chosen = nodes.slice(0, MAX_NODES);
  document.querySelector<HTMLElement>("[data-tab=series]")?.click();
}

export async function drawSeries(container: HTMLElement): Promise<void> {
  if (!chosen.length) chosen = preset().slice(0, MAX_NODES);
  const found = el("div", { class: "series-found" });
  const redraw = () => {
    replace(controls, ...controlParts(redraw));
    void load(found);
  };
  const controls = el("div", { class: "series-controls" });
  replace(container, el("div", { class: "series-page" }, el("h2", {}, t("series")), controls, found));
  redraw();
}

function controlParts(redraw: () => void): HTMLElement[] {
  const drop = (node: string) => ((chosen = chosen.filter((each) => each !== node)), redraw());
  const nodes = chosen.map((node, at) => {
    const swatch = el("i", { class: "colour" });
    swatch.style.background = colour(at);
    return el("button", { type: "button", class: "node-chip", "data-node": node, title: t("remove"), "aria-label": `${node} ${t("remove")}`, onclick: () => drop(node) }, swatch, node, nodePlace(node) && ` ${nodePlace(node)}`, " ×");
  });
  const ranges = HOURS.map((each) => el("button", { type: "button", "data-hours": each, "aria-pressed": String(each === hours), onclick: () => ((hours = each), (hourly = null), redraw()) }, each < 48 ? t("rangeHours", { n: each }) : t("rangeDays", { n: each / 24 })));
  const steps = [false, true].map((each) => el("button", { type: "button", "data-hourly": String(each), "aria-pressed": String(each === isHourly()), onclick: () => ((hourly = each), redraw()) }, t(each ? "hourlyBars" : "tenMinuteBars")));
  return [
    el("div", { class: "chips", role: "group", "aria-label": t("nodes") }, ...nodes, chosen.length < MAX_NODES ? nodeField(redraw) : null),
    el("div", { class: "chips", role: "group", "aria-label": t("range") }, ...ranges, el("span", { class: "gap" }), ...steps),
  ];
}

function isHourly(): boolean {
  return hourly ?? hours > 24;
}

function colour(at: number): string {
  return COLOURS[at % COLOURS.length] ?? "#333";
}

function nodeField(redraw: () => void): HTMLElement {
  const options = el("datalist", { id: "series-nodes" });
  const field = el("input", { type: "search", name: "series-node", list: "series-nodes", placeholder: t("addNode"), "aria-label": t("addNode") });
  let all: string[] = [];
  void fetchNodes().then((nodes) => ((all = nodes.id), fill()));
  const fill = () => {
    const words = field.value.toLowerCase();
    const fitting = all.filter((id) => !chosen.includes(id) && `${id} ${nodePlace(id)}`.toLowerCase().includes(words));
    replace(options, ...fitting.slice(0, MAX_OPTIONS).map((id) => el("option", { value: id }, nodePlace(id))));
  };
  field.addEventListener("input", () => {
    fill();
    if (all.includes(field.value) && !chosen.includes(field.value)) ((chosen = [...chosen, field.value]), redraw());
  });
  return el("span", {}, field, options);
}

async function load(box: HTMLElement): Promise<void> {
  const wanted = JSON.stringify([chosen, hours, isHourly()]);
  box.dataset["wanted"] = wanted;
  if (!chosen.length) return replace(box, el("p", { class: "hint" }, t("chooseNodes")));
  const query = new URLSearchParams({ hours: String(hours) });
  for (const node of chosen) query.append("node", node);
  box.setAttribute("aria-busy", "true");
  try {
    const series = await get<Series>(`api/series?${query}`);
    // A later choice has its own answer.
    if (box.dataset["wanted"] !== wanted) return;
    destroyCharts();
    replace(box, ...parts(series));
  } catch (error) {
    if (box.dataset["wanted"] !== wanted) return;
    const problem = el("p", { class: "problem", role: "alert" }, (error as Error).message);
    replace(box, problem);
    addEventListener("yamamori-online", () => problem.isConnected && void load(box), { once: true });
  } finally {
    if (box.dataset["wanted"] === wanted) box.removeAttribute("aria-busy");
  }
}

function parts(series: Series): HTMLElement[] {
  const { begin_s: fromS, end_s: toS, nodes } = series;
  const range = el("p", { class: "range" }, `${formatTime(fromS)} – ${formatTime(toS)}`);
  const rain = nodes.filter((each) => each.rain);
  const files = [rowLinks(t("shownReadings"), { table: "silver", nodes: nodes.map((each) => each.node), fromS, toS }), rowLinks(t("shownMovement"), { table: "sensors", nodes: nodes.map((each) => each.node), fromS, toS })];
  return [
    range,
    rain.length ? totals(rain) : el("p", { class: "hint" }, t("noRainGauge")),
    ...rain.map((each) => rainChart(each, series)),
    ...motionCharts(series),
    ...readingCharts(series),
    el("p", { class: "hint" }, t("chartMissing")),
    el("h3", {}, t("doubtful")),
    doubts(nodes),
    el("div", { class: "file-lists" }, ...files),
  ];
}

function totals(nodes: NodeSeries[]): HTMLElement {
  const first = nodes[0]?.rain?.totals ?? [];
  const columns = [t("node"), ...first.map(({ hours: n }) => t("totalOf", { n })), t("cumulative")];
  const rows = nodes.map(({ node, rain }) => {
    const cells = (rain?.totals ?? []).map(({ mm, known, doubted_mm: doubted }) =>
      el("td", { class: "number" }, `${known < 1 ? "≥ " : ""}${mm.toFixed(1)} mm`, known < 1 ? el("small", {}, t("knownShare", { n: Math.floor(known * 100) })) : null, doubted > 0 ? el("small", {}, t("doubtedRain", { n: doubted.toFixed(1) })) : null),
    );
    const isBound = (rain?.totals ?? []).some(({ known }) => known < 1);
    return el("tr", { "data-node": node }, el("td", {}, el("b", {}, node), nodePlace(node) && ` ${nodePlace(node)}`), ...cells, el("td", { class: "number" }, `${isBound ? "≥ " : ""}${(rain?.cumulative_mm.at(-1) ?? 0).toFixed(1)} mm`));
  });
  return table("narrow totals", columns, rows).box;
}

function rainChart({ node, rain }: NodeSeries, { step_s: stepS, begin_s: fromS, end_s: toS }: Series): HTMLElement {
  if (!rain) return el("div", {});
  const size = isHourly() ? 6 : 1;
  const depths = sums(rain, size, stepS);
  const times = depths.map(({ time }) => time);
  const tracks: Track[] = [
    { label: t(isHourly() ? "rainHour" : "rainTen"), unit: "mm", colour: colour(chosen.indexOf(node)), bars: true, values: depths.map(({ mm }) => mm) },
    { label: t("cumulative"), unit: "mm", colour: "#12283d", right: true, values: depths.map(({ total }) => total) },
  ];
  return timeChart({ title: `${node} ${nodePlace(node)} – ${t("rainOf")} (mm)`, times, tracks, height: 190, sync: "series", span: [fromS, toS] });
}

interface Bar {
  time: number;
  mm: number | null;
  total: number | null;
}

// Rain of full hours of the clock, or of each step; null where nothing of it is known.
function sums(rain: Rain, size: number, stepS: number): Bar[] {
  const found = new Map<number, Bar>();
  rain.depth_mm.forEach((depth, at) => {
    const endS = rain.begin_s + at * stepS;
    const hour = Math.ceil(endS / (size * stepS));
    const bar = found.get(hour) ?? { time: endS, mm: null, total: null };
    found.set(hour, bar);
    // The hour that has not ended yet ends with its newest step.
    bar.time = endS;
    if (depth === null) return;
    bar.mm = (bar.mm ?? 0) + depth;
    bar.total = rain.cumulative_mm[at] ?? null;
  });
  return [...found.values()];
}

const MOTION: [Rate, Key, string][] = [
  ["tilt_rate_deg_per_h", "tilt", "°/h"],
  ["velocity_mm_per_h", "velocity", "mm/h"],
  ["inverse_h_per_mm", "inverseVelocity", "h/mm"],
  ["angle_deg", "tangentAngle", "°"],
];

function motionCharts(series: Series): HTMLElement[] {
  return MOTION.flatMap(([rate, name, unit]) => {
    const lines = series.nodes.flatMap((each) => each.movement.map((sensor) => ({ node: each.node, sensor })));
    const having = lines.filter(({ sensor }) => sensor[rate].some((value) => value !== null));
    if (!having.length) return [];
    const joined = join(having.map(({ sensor }) => ({ times: sensor.at_s, values: sensor[rate] })));
    const tracks = having.map(({ node, sensor }, at): Track => ({ label: `${node} ${sensorName(sensor.sensor)}`, unit, colour: colour(having.length > series.nodes.length ? at : chosen.indexOf(node)), values: joined.values[at] ?? [] }));
    const chart = timeChart({ title: `${t(name)} (${unit})`, times: joined.times, tracks, sync: "series", span: [series.begin_s, series.end_s], limits: limits(rate, series, having.map(({ node }) => node)) });
    if (rate !== "angle_deg") return [chart];
    const steady = having.map(({ node, sensor }) => `${node} ${(sensor.steady_mm_per_h ?? 0).toPrecision(3)} mm/h`);
    return [chart, el("p", { class: "hint" }, t("steadyHint", { v: steady.join(", ") }))];
  });
}

function limits(rate: Rate, { nodes, velocity_limits, angles_deg: [alert, emergency] }: Series, shown: string[]): Limit[] {
  if (rate === "velocity_mm_per_h") return levelLimits(velocity_limits);
  if (rate === "tilt_rate_deg_per_h") return tiltLimits(nodes.filter(({ node }) => shown.includes(node)));
  if (rate !== "angle_deg") return [];
  return [
    { label: t("angleAlert"), value: alert, colour: "#e02400" },
    { label: t("angleEmergency"), value: emergency, colour: "#aa00aa" },
  ];
}

// Nodes of cells with thresholds of their own have lines of their own.
function tiltLimits(nodes: NodeSeries[]): Limit[] {
  const groups = new Map<string, NodeSeries[]>();
  for (const each of nodes) {
    const key = JSON.stringify(each.tilt_limits);
    groups.set(key, [...(groups.get(key) ?? []), each]);
  }
  const names = (group: NodeSeries[]) => (groups.size > 1 ? `(${group.map(({ node }) => node).join(", ")})` : "");
  return [...groups.values()].flatMap((group) => levelLimits(group[0]?.tilt_limits ?? [], names(group)));
}

// One chart for each reading and unit, with a line for each node.
function readingCharts(series: Series): HTMLElement[] {
  const kinds = new Map<string, { node: string; readings: Readings }[]>();
  for (const { node, readings } of series.nodes) {
    for (const each of readings) {
      const kind = `${each.name} ${each.unit ?? ""}`;
      kinds.set(kind, [...(kinds.get(kind) ?? []), { node, readings: each }]);
    }
  }
  return [...kinds.values()].map((lines) => {
    const { name, unit } = (lines[0] as { readings: Readings }).readings;
    const joined = join(lines.map(({ readings }) => withGaps(readings)));
    const tracks = lines.map(({ node }, at): Track => ({ label: node, unit: unitName(unit, name), colour: colour(chosen.indexOf(node)), values: joined.values[at] ?? [], flags: joined.flags[at] ?? [] }));
    return timeChart({ title: `${sensorName(name, unit)}${unitName(unit, name) && ` (${unitName(unit, name)})`}`, times: joined.times, tracks, height: 130, sync: "series", span: [series.begin_s, series.end_s] });
  });
}

interface Line {
  times: number[];
  values: (number | null)[];
  flags?: (number | null)[];
}

// A null after an hour without data makes a gap in the line.
function withGaps({ at_s: times, value, flag }: Readings): Line {
  const line: Required<Line> = { times: [], values: [], flags: [] };
  const gapS = Math.max(GAP_S, (hours * 3600) / 200);
  const put = (time: number, number: number | null, mark: number | null) => (line.times.push(time), line.values.push(number), line.flags.push(mark));
  times.forEach((time, at) => {
    const before = times[at - 1];
    if (before !== undefined && time - before > gapS) put(before + MINE_S, null, null);
    put(time, value[at] ?? null, flag[at] ?? null);
  });
  return line;
}

// Lines on common times; undefined where a line has no value of its own.
function join(lines: Line[]): { times: number[]; values: (number | null | undefined)[][]; flags: (number | null | undefined)[][] } {
  const times = [...new Set(lines.flatMap((line) => line.times))].sort((a, b) => a - b);
  const place = new Map(times.map((time, at) => [time, at]));
  const spread = (line: Line, values: (number | null)[] | undefined) => {
    const row = new Array<number | null | undefined>(times.length).fill(undefined);
    line.times.forEach((time, at) => (row[place.get(time) ?? 0] = values?.[at] ?? null));
    return row;
  };
  return { times, values: lines.map((line) => spread(line, line.values)), flags: lines.map((line) => spread(line, line.flags)) };
}

function doubts(nodes: NodeSeries[]): HTMLElement {
  const runs = nodes.flatMap((each) => each.flagged.map((run) => ({ node: each.node, run })));
  if (!runs.length) return el("p", {}, t("noDoubts"));
  runs.sort((a, b) => b.run.to_s - a.run.to_s);
  const rows = runs.map(({ node, run }) =>
    el(
      "tr",
      { "data-doubt": `${node} ${run.name}` },
      el("td", {}, el("b", {}, node), ` ${sensorName(run.name, run.unit)}`),
      el("td", {}, formatTime(run.from_s), run.to_s > run.from_s ? ` – ${formatTime(run.to_s)}` : ""),
      el("td", { class: "number" }, String(run.count)),
      el("td", { class: "number" }, run.low === run.high ? `${run.low}` : `${run.low} – ${run.high}`, ` ${unitName(run.unit, run.name)}`),
      el("td", {}, flagBadge(run.flag), " ", run.reasons.map((reason) => reason[currentLanguage()]).join(t("separator"))),
    ),
  );
  const names: Key[] = ["readingColumn", "timeColumn", "count", "valueColumn", "qc"];
  return table("doubts", names.map((name) => t(name)), rows).box;
}
