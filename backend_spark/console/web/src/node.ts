// One node in a window: its readings over 72 hours, with flags and limits.
import { el } from "./dom";
import { timeChart } from "./lines";
import { flagWord, type NodeFacts } from "./panel";
import { get, part } from "./server";
import { ago, t, when, type Key } from "./words";

interface Readings {
  unit: string | null;
  at_s: number[];
  value: number[];
  flag: (number | null)[];
}

type NodeSeries = NodeFacts & { series: Record<string, Readings>; now_s: number };

const COLOURS = ["#1565c0", "#0b7285", "#5d4037", "#6a1b9a", "#2f7d32"];
const GAP_S = 3600;

export async function showNode(id: string): Promise<void> {
  const facts = await get<NodeSeries>(`api/node/${part(id)}`);
  document.querySelector("dialog.node-window")?.remove();
  const close = el("button", { type: "button", class: "close", onclick: () => window.close() }, t("close"));
  const window = el("dialog", { class: "node-window", "data-node": id }, el("header", {}, el("h2", {}, el("i", { class: `node ${facts.state}` }), facts.id), close), health(facts), ...charts(facts));
  window.addEventListener("close", () => window.remove());
  document.body.append(window);
  window.showModal();
}

function health(facts: NodeSeries): HTMLElement {
  const rows: [string, string][] = [
    [t("state"), t(facts.state as Key)],
    [t("lastSeen"), `${when(facts.at_s)}（${ago(facts.now_s - facts.at_s)}）`],
    [t("lag"), `${Math.max(0, Math.round(facts.age_s ?? 0))} s`],
    [t("cell"), facts.cell ?? "–"],
    ["lat, lon", facts.place ? facts.place.map((degrees) => degrees.toFixed(5)).join(", ") : "–"],
  ];
  return el("dl", { class: "facts" }, ...rows.flatMap(([name, words]) => [el("dt", {}, name), el("dd", {}, words)]), flagWord(facts.flag));
}

function charts(facts: NodeSeries): HTMLElement[] {
  return Object.entries(facts.series).map(([name, readings], at) => {
    const { times, values, flags } = withGaps(readings);
    const unit = readings.unit ?? "";
    return timeChart({ title: `${name} ${unit && `(${unit})`}`, times, flags, height: 120, tracks: [{ label: name, unit, colour: COLOURS[at % COLOURS.length] ?? "#333", values }] });
  });
}

// A line across an hour of silence would look like data.
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
