// A cell by names that people know: those of its nodes. Its token tells nobody anything.
import { el } from "./dom";
import { get } from "./server";

export interface NodeList {
  id: string[];
  latitude: number[];
  longitude: number[];
  cell: (string | null)[];
  state: string[];
}

const MOST_NAMES = 2;
const names = new Map<string, string[]>();

export async function renewPlaces(): Promise<NodeList> {
  const nodes = await get<NodeList>("api/nodes");
  names.clear();
  nodes.cell.forEach((cell, at) => {
    if (!cell) return;
    const known = names.get(cell) ?? [];
    names.set(cell, [...known, nodes.id[at] ?? ""]);
  });
  return nodes;
}

export function placeName(token: string): string {
  const known = names.get(token) ?? [];
  const more = known.length > MOST_NAMES ? ` +${known.length - MOST_NAMES}` : "";
  return known.slice(0, MOST_NAMES).join(", ") + more;
}

export function place(token: string): HTMLElement {
  const name = placeName(token);
  return el("span", { class: "where" }, name ? el("b", {}, name) : null, " ", el("code", {}, token));
}
