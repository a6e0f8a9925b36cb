// Window of a node: its readings over 72 hours, with flags and limits.
import { el } from "./dom";
import { weekLinks } from "./rowLinks";
import { type LevelLimit, type NodeState, get, encode } from "./api";
import { levelLimits, timeChart } from "./timeChart";
import { flagBadge } from "./badges";
import { type Fault, faultLine } from "./faults";
import { nodePlace, sensorName, unitName } from "./names";
import { openSeries } from "./series";
import { formatAgo, formatDuration, t, formatTime, type Key } from "./i18n";

interface Readings {
  unit: string | null;
  at_s: number[];
  value: number[];
  flag: (number | null)[];
}

interface Sensor {
  sensor: string;
  at: number;
  tilt_rate_deg_per_h: number | null;
  tilt_noise_deg_per_h: number | null;
  velocity_mm_per_h: number | null;
  failure_at: number | null;
  failure_earliest_at: number | null;
  failure_latest_at: number | null;
  failure_r2: number | null;
  failure_points: number | null;
  failure_usable: boolean | null;
  failure_gate: string | null;
}

interface NodeSeries extends NodeState {
  series: Record<string, Readings>;
  sensors: Sensor[];
  faults: Fault[];
  tilt_limits: LevelLimit[];
  velocity_limits: LevelLimit[];
  now_s: number;
}

const COLOURS = ["#1565c0", "#0b7285", "#5d4037", "#6a1b9a", "#2f7d32"];
const GAP_S = 3600;

let newest = 0;

export async function showNode(id: string): Promise<void> {
  const asked = ++newest;
  const facts = await get<NodeSeries>(`api/node/${encode(id)}`).catch((error: unknown) => error as Error);
  // A later click counts, and a window with a form that was opened meanwhile stays.
  if (asked !== newest || document.querySelector("dialog[open]:not([data-node])")) return;
  document.querySelector("dialog.node-window")?.remove();
  const close = el("button", { type: "button", class: "close", onclick: () => window.close() }, t("close"));
  const isKnown = !(facts instanceof Error);
  const head = el("div", { class: "head" }, el("h2", {}, isKnown && el("i", { class: `node ${facts.state}` }), id), close);
  const parts = isKnown ? [health(facts), ...facts.faults.map(faultLine), el("button", { type: "button", class: "open-series", onclick: () => (window.close(), openSeries([id])) }, t("seriesOfNode")), ...motion(facts), ...charts(facts), weekLinks("silver", { node: id }, facts.now_s)] : [el("p", { class: "problem", role: "alert" }, facts.message)];
  const window = el("dialog", { class: "node-window", "data-node": id }, head, ...parts);
  window.addEventListener("close", () => window.remove());
  document.body.append(window);
  window.showModal();
}

function health(facts: NodeSeries): HTMLElement {
  const rows: [string, string][] = [
    [t("state"), t(facts.state as Key)],
    [t("lastSeen"), `${formatTime(facts.at_s)}（${formatAgo(facts.now_s - facts.at_s)}）`],
    [t("lag"), formatDuration(facts.age_s ?? 0)],
    [t("placeName"), nodePlace(facts.id) || "–"],
    [t("cell"), facts.cell ?? "–"],
    [t("alarmOutputs"), alarms(facts)],
    [t("coordinates"), facts.place ? facts.place.map((degrees) => degrees.toFixed(5)).join(", ") : "–"],
  ];
  return el("dl", { class: "facts" }, ...rows.flatMap(([name, words]) => [el("dt", {}, name), el("dd", {}, words)]), flagBadge(facts.flag));
}

function alarms(facts: NodeSeries): string {
  const text = facts.readings["agent/alarms"]?.text;
  if (!text) return t("noOutputs");
  return text.split(" ").map((part) => part.replace(/:(\w+)$/, (_, state: string) => `: ${t(`output_${state}` as Key)}`)).join(", ");
}

function charts(facts: NodeSeries): HTMLElement[] {
  return Object.entries(facts.series).map(([name, readings], at) => {
    const { times, values, flags } = withGaps(readings);
    const unit = unitName(readings.unit, name);
    return timeChart({ title: `${sensorName(name, readings.unit)} ${unit && `(${unit})`}`, times, height: 120, tracks: [{ label: sensorName(name, readings.unit), unit, colour: COLOURS[at % COLOURS.length] ?? "#333", values, flags }] });
  });
}

function motion(facts: NodeSeries): HTMLElement[] {
  return [...new Set(facts.sensors.map((row) => row.sensor))].flatMap((name) => {
    const rows = facts.sensors.filter((row) => row.sensor === name);
    const times = rows.map((row) => row.at);
    const last = rows[rows.length - 1];
    const tilt = rows.map((row) => row.tilt_rate_deg_per_h);
    const speed = rows.map((row) => row.velocity_mm_per_h);
    return [
      tilt.some((rate) => rate !== null) &&
        timeChart({
          title: `${sensorName(name)}: ${t("tilt")} (°/h)`,
          times,
          limits: levelLimits(facts.tilt_limits),
          tracks: [
            { label: t("tilt"), unit: "°/h", colour: "#5d4037", values: tilt },
            { label: t("noise"), unit: "°/h", colour: "#a1a1a1", values: rows.map((row) => row.tilt_noise_deg_per_h) },
          ],
        }),
      speed.some((rate) => rate !== null) && timeChart({ title: `${sensorName(name)}: ${t("velocity")} (mm/h)`, times, limits: levelLimits(facts.velocity_limits), tracks: [{ label: t("velocity"), unit: "mm/h", colour: "#6a1b9a", values: speed }] }),
      last && last.failure_at !== null && failure(last),
    ].filter((part): part is HTMLElement => !!part);
  });
}

// The time of failure is shown only with its confidence interval.
function failure(row: Sensor): HTMLElement {
  const time = (at: number | null): string => (at ? formatTime(at) : "–");
  const sure = t("confident", { from: time(row.failure_earliest_at), to: time(row.failure_latest_at), r: (row.failure_r2 ?? NaN).toFixed(2), n: row.failure_points ?? 0 });
  const words = row.failure_usable ? `${time(row.failure_at)}（${sure}）` : t("unusable", { gate: row.failure_gate ?? "" });
  return el("p", { class: row.failure_usable ? "warn" : "hint" }, `${t("failure")}: ${words}`);
}

// Insert a null after an hour without data, so that the line has a gap.
function withGaps(readings: Readings): { times: number[]; values: (number | null)[]; flags: (number | null)[] } {
  const times: number[] = [];
  const values: (number | null)[] = [];
  const flags: (number | null)[] = [];
  readings.at_s.forEach((time, at) => {
    const before = times[times.length - 1];
    if (before !== undefined && time - before > GAP_S) {
      times.push(before + 1);
      values.push(null);
      flags.push(null);
    }
    times.push(time);
    values.push(readings.value[at] ?? null);
    flags.push(readings.flag[at] ?? null);
  });
  return { times, values, flags };
}
