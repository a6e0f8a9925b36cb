// Table of nodes and gateways: last seen, delay, clock, power, quality flags. The server
// sends the worst nodes of those whose id contains the text of the filter.
import { table, el, replace } from "./dom";
import { type Gateway, get } from "./api";
import { flagBadge, outputBadge } from "./badges";
import { type Fault, faultLine } from "./faults";
import { showNode } from "./node";
import { nodePlace } from "./names";
import { formatAgo, formatDuration, t, formatTime, type Key } from "./i18n";

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
