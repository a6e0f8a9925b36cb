// Names of cells and readings. Cells have those of their places, else the ids of their nodes: a token
// means nothing to people. Readings are named by their unit and the last part of their name.
import { el } from "./dom";
import { get } from "./api";
import { currentLanguage } from "./i18n";

interface NodeList {
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
let loaded: Promise<unknown> | null = null;

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

// Before a list of cells is drawn, also where the page is opened at its tab; without an answer it has the tokens.
export function loadNames(): Promise<unknown> {
  return (loaded ??= Promise.all([fetchNodes(), fetchPlaces()]).catch(() => (loaded = null)));
}

export async function fetchPlaces(): Promise<void> {
  const found = await get<{ places: Place[]; nodes: Record<string, number> }>("api/places");
  loaded ??= Promise.resolve();
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

// By unit, or by the last part of the name after a slash; Japanese and English.
const PARTS: Record<string, [string, string]> = {
  x: ["傾斜 X", "Tilt X"],
  y: ["傾斜 Y", "Tilt Y"],
  sigma: ["傾斜のノイズ", "Tilt noise"],
  temp: ["温度", "Temperature"],
  humidity: ["湿度", "Humidity"],
  pressure: ["気圧", "Air pressure"],
  refused: ["除外した接点信号", "Refused closures"],
};
const UNITS: Record<string, [string, string]> = {
  mm: ["変位", "Displacement"],
  deg: ["傾斜", "Tilt"],
  "/": ["体積含水率", "Water content"],
  hPa: ["間隙水圧", "Pore pressure"],
  Cel: ["温度", "Temperature"],
  "%RH": ["湿度", "Humidity"],
  count: ["振動回数", "Shocks"],
  m: ["水位", "Water level"],
  V: ["電圧", "Voltage"],
};
const NAMES: Record<string, [string, string]> = {
  rain: ["雨量", "Rain"],
  tilt: ["傾斜計", "Tilt meter"],
  displacement: ["伸縮計", "Extensometer"],
  extensometer: ["伸縮計", "Extensometer"],
  wire: ["ワイヤーセンサー", "Wire"],
  vibration: ["振動", "Vibration"],
  battery: ["電池電圧", "Battery voltage"],
  rssi: ["受信強度", "Signal strength"],
  "disk-free": ["ディスクの空き", "Free disk"],
  "under-voltage": ["電圧低下", "Under-voltage"],
  throttled: ["速度制限", "Throttled"],
  "life-used": ["記録媒体の消耗", "Wear of storage"],
};

const SIGNS: Record<string, string> = { "/": "m³/m³", deg: "°", Cel: "°C", "%RH": "%", count: "" };

// Unit as it is written for people; SenML's codes are for programs. A share by a secondary value is none of water.
export function unitName(unit: string | null, name: string): string {
  if (unit === "/" && name.includes("/")) return "";
  return SIGNS[unit ?? ""] ?? unit ?? "";
}

export function sensorName(name: string, unit: string | null = null): string {
  const [sensor = "", part] = name.split(/\/(?=[^/]*$)/);
  const known = part === undefined ? (NAMES[name] ?? UNITS[unit ?? ""]) : (NAMES[part] ?? PARTS[part]);
  if (!known) return name;
  const word = known[currentLanguage() === "ja" ? 0 : 1];
  // A name that an installer gave says which of two sensors it is.
  const given = part === undefined ? name : sensor;
  const isUsual = given in NAMES;
  return isUsual ? word : `${word}（${given}）`;
}
