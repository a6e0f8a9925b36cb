// Nodes and their links: last seen, lateness, clock, power, quality flags; worst first.
import { el, replace } from "./dom";
import { showNode } from "./node";
import { flagWord } from "./panel";
import { get } from "./server";
import { ago, t, when, type Key } from "./words";

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
}

const MOST_ROWS = 300;

export async function drawHealth(room: HTMLElement): Promise<void> {
  const { now_s, rows } = await get<{ now_s: number; rows: Row[] }>("api/health");
  const find = el("input", { type: "search", "aria-label": t("filter"), placeholder: t("filter") });
  const body = el("tbody", {});
  const count = el("p", { class: "hint" });
  const fill = () => {
    const wanted = rows.filter((row) => row.id.toLowerCase().includes(find.value.toLowerCase()));
    replace(body, ...wanted.slice(0, MOST_ROWS).map((row) => line(row, now_s)));
    count.textContent = t("nodesShown", { n: Math.min(wanted.length, MOST_ROWS), all: rows.length });
  };
  find.addEventListener("input", fill);
  const names: Key[] = ["node", "state", "lastSeen", "lag", "synced", "battery", "machine", "doubts", "cell"];
  const head = el("tr", {}, ...names.map((name) => el("th", { scope: "col" }, t(name))));
  replace(room, el("h2", {}, t("health")), el("div", { class: "form" }, find, count), el("table", { class: "list" }, el("thead", {}, head), body));
  fill();
}

function line(row: Row, now: number): HTMLElement {
  const open = el("button", { type: "button", onclick: () => void showNode(row.id) }, row.id);
  return el(
    "tr",
    { "data-node": row.id, class: row.state },
    el("td", {}, open),
    el("td", {}, el("i", { class: `node ${row.state}` }), t(row.state as Key)),
    el("td", {}, `${when(row.at_s)}（${ago(now - row.at_s)}）`),
    el("td", { class: "number" }, `${Math.round(row.age_s ?? row.lag_s)} s`),
    el("td", {}, t(row.synchronised ? "yes" : "no")),
    el("td", {}, row.battery ? said(row.battery) : "–"),
    el("td", {}, row.machine.map(said).join(", ") || "–"),
    el("td", {}, ...row.doubts.map((doubt) => el("div", {}, doubt.name, " ", flagWord(doubt.flag)))),
    el("td", {}, row.cell ? el("a", { href: `#${row.cell}` }, row.cell) : "–"),
  );
}

function said(reading: Said): string {
  return `${reading.name} ${reading.value === null ? "–" : +reading.value.toPrecision(4)} ${reading.unit ?? ""}`;
}
