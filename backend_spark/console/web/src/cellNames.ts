// Names of cells: the ids of their nodes, since a token means nothing to people.
import { el } from "./dom";
import { get } from "./api";

export interface NodeList {
  id: string[];
  latitude: number[];
  longitude: number[];
  cell: (string | null)[];
  state: string[];
}

const MAX_NAMES = 2;
const names = new Map<string, string[]>();

export async function fetchNodes(): Promise<NodeList> {
  const nodes = await get<NodeList>("api/nodes");
  names.clear();
  nodes.cell.forEach((cell, at) => {
    if (!cell) return;
    const known = names.get(cell) ?? [];
    names.set(cell, [...known, nodes.id[at] ?? ""]);
  });
  return nodes;
}

export function cellName(token: string): string {
  const known = names.get(token) ?? [];
  const more = known.length > MAX_NAMES ? ` +${known.length - MAX_NAMES}` : "";
  return known.slice(0, MAX_NAMES).join(", ") + more;
}

export function cellLabel(token: string): HTMLElement {
  const name = cellName(token);
  return el("span", { class: "where" }, name ? el("b", {}, name) : null, " ", el("code", {}, token));
}
