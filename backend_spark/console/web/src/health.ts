// Health of nodes and gateways: their table, what a node reports as wrong, and the window of a node. The server sends the
// worst nodes of those whose id contains the text of the filter.
import { table, el, replace } from "./dom";
import { type Gateway, get, type LevelLimit, type NodeState, encode } from "./api";
import { flagBadge, outputBadge } from "./badges";
import { nodePlace, sensorName, unitName } from "./names";
import { formatAgo, formatDuration, t, formatTime, type Key, currentLanguage } from "./i18n";
import { weekLinks, openSeries } from "./series";
import { levelLimits, timeChart } from "./timeChart";

interface NamedReading {
  name: string;
  value: number | null;
  unit: string | null;
}

interface Row {
  id: string;
  cell: string | null;
  state: string;
  at_s: number;
  received_s: number;
  lag_s: number;
  age_s: number | null;
  synchronised: boolean;
  battery: NamedReading | null;
  machine: NamedReading[];
  doubts: { name: string; flag: number }[];
  faults: Fault[];
  more_faults: number;
  reported_s: number | null;
  queued: string | null;
  oldest_s: number | null;
  gateway: string | null;
  dropped: number | null;
  alarms: Record<string, string> | null;
}

interface HealthResponse {
  now_s: number;
  rows: Row[];
  all: number;
  gateways: Gateway[];
  managers: { listed_s: number | null; problem: string | null };
}

export async function drawHealth(container: HTMLElement): Promise<void> {
  const response = await get<HealthResponse>("api/health");
  const filter = el("input", { type: "search", "aria-label": t("filter"), placeholder: t("filter") });
  const count = el("p", { class: "hint", role: "status" });
  const names: Key[] = ["node", "state", "lastSeen", "lag", "queued", "oldest", "gateway", "battery", "dropped", "remarks", "cell"];
  const nodes = table("", names.map((name) => t(name)));
  const fill = ({ rows, all, now_s }: HealthResponse) => {
    count.className = "hint";
    nodes.fill(rows.map((row) => nodeRow(row, now_s)));
    count.textContent = t("nodesShown", { n: rows.length, all });
  };
  const refill = async () => {
    const text = filter.value;
    try {
      const found = await get<HealthResponse>(text ? `api/health?node=${encodeURIComponent(text)}` : "api/health");
      if (text === filter.value) fill(found);
    } catch (error) {
      if (text !== filter.value) return;
      // The rows of the filter before would pass for those of this one.
      nodes.fill([]);
      count.className = "problem";
      count.textContent = (error as Error).message;
      addEventListener("yamamori-online", () => count.isConnected && void refill(), { once: true });
    }
  };
  filter.addEventListener("input", () => void refill());
  replace(container, el("div", { class: "health-page" }, el("h2", {}, t("gateways")), ...gatewayTable(response), el("h2", {}, t("nodes")), el("div", { class: "form" }, filter, count), nodes.box));
  fill(response);
}

function gatewayTable({ gateways: all, managers, now_s }: HealthResponse): HTMLElement[] {
  const words = managers.problem ? t("managersUnreachable") + managers.problem : managers.listed_s === null ? t("managersUnset") : "";
  const hint = el("p", { class: managers.problem ? "warn" : "hint" }, words);
  if (!all.length) return [hint, el("p", {}, t("noGateways"))];
  const names: Key[] = ["gateway", "state", "area", "place", "nodesServed", "lastReceived"];
  const rows = all.map((each) =>
    el(
      "tr",
      { "data-gateway": each.id, class: each.state },
      el("td", {}, each.id),
      el("td", { class: "short" }, el("i", { class: `gateway ${each.state}` }), t(each.state as Key)),
      el("td", {}, el("code", {}, each.areas.join(" ") || "–")),
      el("td", {}, each.place ? t(each.exact ? "placeExact" : "placeAbout") : "–"),
      el("td", { class: "number" }, String(each.nodes)),
      el("td", {}, each.received_s === null ? "–" : `${formatTime(each.received_s)}（${formatAgo(now_s - each.received_s)}）`),
    ),
  );
  return [hint, table("narrow", names.map((name) => t(name)), rows).box];
}

// State of a node's queue, with the age of the status report that contains it.
function queueCell(row: Row, now: number): HTMLElement {
  if (row.queued === null || row.reported_s === null) return el("td", {}, "–");
  const words = row.queued === "none" ? t("none") : row.queued;
  return el("td", {}, el("b", {}, words), el("small", { class: "hint" }, t("reportedAt", { t: formatAgo(now - row.reported_s) })));
}

function nodeRow(row: Row, now: number): HTMLTableRowElement {
  const open = el("button", { type: "button", onclick: () => void showNode(row.id) }, row.id);
  return el(
    "tr",
    { "data-node": row.id, class: row.state },
    el("td", {}, open),
    el("td", { class: "short" }, el("i", { class: `node ${row.state}` }), t(row.state as Key)),
    el("td", { class: "short" }, formatTime(row.at_s), el("small", {}, formatAgo(now - row.at_s))),
    el("td", { class: "number" }, formatDuration(row.age_s ?? row.lag_s)),
    queueCell(row, now),
    el("td", { class: "number" }, row.oldest_s === null ? "–" : formatDuration(row.oldest_s)),
    el("td", {}, row.gateway === "none" ? t("none") : (row.gateway ?? "–")),
    el("td", { class: "short" }, row.battery ? valueText(row.battery) : "–"),
    el("td", { class: "number" }, row.dropped === null ? "–" : String(row.dropped)),
    remarksCell(row),
    el("td", {}, row.cell ? el("a", { href: `#${row.cell}` }, nodePlace(row.id) || row.cell) : "–"),
  );
}

function remarksCell(row: Row): HTMLElement {
  const clock = row.synchronised ? null : el("div", {}, `${t("clockLabel")}: ${t("no")}`);
  const machine = row.machine.map((reading) => el("div", {}, readingText(reading)));
  const doubts = row.doubts.map((doubt) => el("div", {}, doubt.name, " ", flagBadge(doubt.flag)));
  const alarms = Object.entries(row.alarms ?? {}).filter(([, state]) => state !== "off");
  const more = row.more_faults ? el("div", {}, `+${row.more_faults}`) : null;
  return el("td", {}, clock, ...row.faults.map(faultLine), more, ...alarms.map(([name, state]) => outputBadge(name, state)), ...machine, ...doubts);
}

// Value without the name of the reading, which the node's window shows.
function valueText(reading: NamedReading): string {
  return `${reading.value === null ? "–" : +reading.value.toPrecision(4)} ${reading.unit ?? ""}`;
}

function readingText(reading: NamedReading): string {
  return `${reading.name} ${reading.value === null ? "–" : +reading.value.toPrecision(4)} ${reading.unit ?? ""}`;
}

interface Fault {
  name: string;
  text: string;
}

// First words of the texts that nodes send; Japanese.
const WORDS: [string, string][] = [
  ["not opened", "開けない"],
  ["no answer", "応答なし"],
  ["hangs", "応答が終わらない"],
  ["wrong chip", "別の素子"],
  ["not converted", "変換されない"],
  ["disconnected", "断線・未接続"],
  ["shorted", "短絡"],
  ["stuck", "固着"],
  ["flaps", "接点が乱れる"],
  ["loop broken", "電流ループの断線"],
  ["loop fault", "電流ループの異常"],
  ["saturated", "測定範囲を超過"],
  ["noisy", "ノイズが大きい"],
  ["implausible", "あり得ない値"],
  ["driver fault", "プログラムの不具合"],
  ["doubtful", "疑わしい値"],
  ["safe mode", "セーフモード"],
  ["the disk cannot be written", "メモリーカードに書き込めない"],
  ["queue.path cannot be written", "送信待ちのファイルに書き込めない"],
];

function subject(name: string): string {
  const [sensor = "", part] = name.split(/\/(?=[^/]*$)/);
  const isJapanese = currentLanguage() === "ja";
  if (sensor === "config/mistake") return isJapanese ? `設定の誤り ${part}` : `Mistake ${part} in the settings`;
  if (name === "config/health") return isJapanese ? "設定" : "Settings";
  if (name === "disk/health") return isJapanese ? "メモリーカード" : "Disk";
  if (part === "rule") return `${sensorName(sensor)}${isJapanese ? "の判定規則" : ", rule"}`;
  return sensorName(sensor);
}

// The text of the node stays, for whoever repairs it.
function faultLine({ name, text }: Fault): HTMLElement {
  const word = currentLanguage() === "ja" && WORDS.find(([known]) => text === known || text.startsWith(`${known}:`) || text.startsWith(`${known},`));
  return el("div", { class: "fault", "data-fault": name }, `${subject(name)}: `, word ? `${word[1]} ` : null, el("bdi", {}, word ? `(${text})` : text));
}

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
