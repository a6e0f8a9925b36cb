// Names of cells: their places, else the ids of their nodes, since a token means nothing
// to people.
import { el } from "./dom";
import { get } from "./api";

export interface NodeList {
  id: string[];
  latitude: number[];
  longitude: number[];
  cell: (string | null)[];
  state: string[];
}

export interface Place {
  district: string;
  town: string;
  slope: string;
  households: number | null;
  shelter: string;
  contact: string;
  cells: string[];
}

const MAX_NAMES = 2;
const nodesOf = new Map<string, string[]>();
const placesOf = new Map<string, Place[]>();
let placeOfNode: Record<string, Place | undefined> = {};
let places: Place[] = [];

export async function fetchNodes(): Promise<NodeList> {
  const nodes = await get<NodeList>("api/nodes");
  nodesOf.clear();
  nodes.cell.forEach((cell, at) => {
    if (!cell) return;
    const known = nodesOf.get(cell) ?? [];
    nodesOf.set(cell, [...known, nodes.id[at] ?? ""]);
  });
  return nodes;
}

export async function fetchPlaces(): Promise<void> {
  const found = await get<{ places: Place[]; nodes: Record<string, number> }>("api/places");
  places = found.places;
  placesOf.clear();
  for (const place of places) for (const cell of place.cells) placesOf.set(cell, [...(placesOf.get(cell) ?? []), place]);
  for (const each of placesOf.values()) each.sort((a, b) => (b.households ?? 0) - (a.households ?? 0) || placeName(a).localeCompare(placeName(b)));
  placeOfNode = Object.fromEntries(Object.entries(found.nodes).map(([node, at]) => [node, places[at]]));
}

export function placesIn(token: string): readonly Place[] {
  return placesOf.get(token) ?? [];
}

export function allPlaces(): readonly Place[] {
  return places;
}

export function placeName(place: Place): string {
  return `${place.district} ${place.slope}`.trim();
}

export function nodePlace(node: string): string {
  const place = placeOfNode[node];
  return place ? placeName(place) : "";
}

export function nodesIn(token: string): readonly string[] {
  return nodesOf.get(token) ?? [];
}

export function householdsIn(token: string): number {
  return placesIn(token).reduce((sum, place) => sum + (place.households ?? 0), 0);
}

export function cellName(token: string): string {
  const named = placesIn(token).map(placeName);
  const known = named.length ? named : (nodesOf.get(token) ?? []);
  const shown = named.length ? 1 : MAX_NAMES;
  const more = known.length > shown ? ` +${known.length - shown}` : "";
  return known.slice(0, shown).join(", ") + more;
}

export function cellLabel(token: string): HTMLElement {
  const name = cellName(token);
  return el("span", { class: "where" }, name ? el("b", {}, name) : null, " ", el("code", {}, token));
}
