// Nodes and their links: last seen, lateness, clock, power, quality flags; worst first.
import { el, replace } from "./dom";
import type { Gateway } from "./facts";
import { flagWord } from "./marks";
import { showNode } from "./node";
import { get } from "./server";
import { ago, span, t, when, type Key } from "./words";

interface Said {
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
  battery: Said | null;
  machine: Said[];
  doubts: { name: string; flag: number }[];
  reported_s: number | null;
  queued: string | null;
  oldest_s: number | null;
  gateway: string | null;
  dropped: number | null;
}

interface Told {
  now_s: number;
  rows: Row[];
  gateways: Gateway[];
  managers: { told_s: number | null; problem: string | null };
}

const MOST_ROWS = 300;

export async function drawHealth(room: HTMLElement): Promise<void> {
  const told = await get<Told>("api/health");
  const { now_s, rows } = told;
  const find = el("input", { type: "search", "aria-label": t("filter"), placeholder: t("filter") });
  const body = el("tbody", {});
  const count = el("p", { class: "hint" });
  const fill = () => {
    const wanted = rows.filter((row) => row.id.toLowerCase().includes(find.value.toLowerCase()));
    replace(body, ...wanted.slice(0, MOST_ROWS).map((row) => line(row, now_s)));
    count.textContent = t("nodesShown", { n: Math.min(wanted.length, MOST_ROWS), all: rows.length });
  };
  find.addEventListener("input", fill);
  const names: Key[] = ["node", "state", "lastSeen", "lag", "queued", "oldest", "gateway", "battery", "lost", "remarks", "cell"];
  const table = el("table", { class: "list" }, heads(names), body);
  replace(room, el("div", { class: "health-page" }, el("h2", {}, t("gateways")), ...gateways(told), el("h2", {}, t("nodes")), el("div", { class: "form" }, find, count), table));
  fill();
}

function heads(names: Key[]): HTMLElement {
  return el("thead", {}, el("tr", {}, ...names.map((name) => el("th", { scope: "col" }, t(name)))));
}

function gateways({ gateways: all, managers, now_s }: Told): HTMLElement[] {
  const words = managers.problem ? t("managersSilent") + managers.problem : managers.told_s === null ? t("managersUnset") : "";
  const hint = el("p", { class: managers.problem ? "warn" : "hint" }, words);
  if (!all.length) return [hint, el("p", {}, t("noGateways"))];
  const names: Key[] = ["gateway", "state", "area", "place", "nodesServed", "lastHeard"];
  const rows = all.map((each) =>
    el(
      "tr",
      { "data-gateway": each.id, class: each.state },
      el("td", {}, each.id),
      el("td", { class: "short" }, el("i", { class: `gateway ${each.state}` }), t(each.state as Key)),
      el("td", {}, el("code", {}, each.areas.join(" ") || "–")),
      el("td", {}, each.place ? t(each.exact ? "placeExact" : "placeAbout") : "–"),
      el("td", { class: "number" }, String(each.nodes)),
      el("td", {}, each.heard_s === null ? "–" : `${when(each.heard_s)}（${ago(now_s - each.heard_s)}）`),
    ),
  );
  return [hint, el("table", { class: "list narrow" }, heads(names), el("tbody", {}, ...rows))];
}

// What is told of a queue is as old as the report, and says so.
function waiting(row: Row, now: number): HTMLElement {
  if (row.queued === null || row.reported_s === null) return el("td", {}, "–");
  const words = row.queued === "none" ? t("nothingWaits") : row.queued;
  return el("td", {}, el("b", {}, words), el("small", { class: "hint" }, t("toldAt", { t: ago(now - row.reported_s) })));
}

function line(row: Row, now: number): HTMLElement {
  const open = el("button", { type: "button", onclick: () => void showNode(row.id) }, row.id);
  return el(
    "tr",
    { "data-node": row.id, class: row.state },
    el("td", {}, open),
    el("td", { class: "short" }, el("i", { class: `node ${row.state}` }), t(row.state as Key)),
    el("td", { class: "short" }, when(row.at_s), el("small", {}, ago(now - row.at_s))),
    el("td", { class: "number" }, span(row.age_s ?? row.lag_s)),
    waiting(row, now),
    el("td", { class: "number" }, row.oldest_s === null ? "–" : span(row.oldest_s)),
    el("td", {}, row.gateway === "none" ? t("nothingWaits") : (row.gateway ?? "–")),
    el("td", { class: "short" }, row.battery ? volts(row.battery) : "–"),
    el("td", { class: "number" }, row.dropped === null ? "–" : String(row.dropped)),
    remarks(row),
    el("td", {}, row.cell ? el("a", { href: `#${row.cell}` }, row.cell) : "–"),
  );
}

function remarks(row: Row): HTMLElement {
  const clock = row.synchronised ? null : el("div", {}, `${t("synced")}: ${t("no")}`);
  const machine = row.machine.map((reading) => el("div", {}, said(reading)));
  const doubts = row.doubts.map((doubt) => el("div", {}, doubt.name, " ", flagWord(doubt.flag)));
  return el("td", {}, clock, ...machine, ...doubts);
}

// Whose word it is, is told by its window; here the number counts.
function volts(reading: Said): string {
  return `${reading.value === null ? "–" : +reading.value.toPrecision(4)} ${reading.unit ?? ""}`;
}

function said(reading: Said): string {
  return `${reading.name} ${reading.value === null ? "–" : +reading.value.toPrecision(4)} ${reading.unit ?? ""}`;
}
