// Address of a view, so that a colleague opens the same: tab, cell, time, map, language.
import { get } from "./api";
import { currentLanguage } from "./i18n";
import type { LevelMap, MapPosition } from "./map";
import type { Known, State } from "./state";

interface View {
  cell: string | null;
  tab: string | null;
  atS: number | null;
  replay: { fromS: number; toS: number; known: Known } | null;
  map: MapPosition | null;
}

const DELAY_MS = 300;
const HALF_DAY_S = 43_200;

// A hash without "=" is the token of a cell, as in links of lists and reports.
function readAddress(hash = location.hash.slice(1)): View {
  const parts = new URLSearchParams(hash.includes("=") ? hash : { cell: decodeURIComponent(hash) });
  const [latitude, longitude, zoom] = numbers(parts.get("map"));
  const [fromS, toS] = numbers(parts.get("replay"));
  const isPlace = latitude !== undefined && longitude !== undefined && zoom !== undefined && Math.abs(latitude) <= 85 && Math.abs(longitude) <= 180;
  return {
    cell: parts.get("cell") || null,
    tab: parts.get("tab"),
    atS: numbers(parts.get("at"))[0] ?? null,
    replay: fromS !== undefined && toS !== undefined && fromS < toS ? { fromS, toS, known: parts.get("known") === "then" ? "then" : "now" } : null,
    map: isPlace ? { latitude, longitude, zoom } : null,
  };
}

function numbers(text: string | null): number[] {
  const found = (text ?? "").split(",").map((part) => (part.trim() ? Number(part) : NaN));
  return found.every(Number.isFinite) ? found : [];
}

function write(state: State, map: LevelMap): void {
  const parts = new URLSearchParams();
  const tab = openTab();
  if (tab !== "map") parts.set("tab", tab);
  if (state.selected) parts.set("cell", state.selected);
  if (state.atS !== null) parts.set("at", String(state.atS));
  if (state.replay) {
    parts.set("replay", `${state.replay.fromS},${state.replay.toS}`);
    if (state.replay.known === "then") parts.set("known", "then");
  }
  const place = map.position();
  if (place) parts.set("map", [place.latitude.toFixed(5), place.longitude.toFixed(5), place.zoom.toFixed(2)].join(","));
  const hash = parts.toString().replaceAll("%2C", ",");
  history.replaceState(null, "", `?lang=${currentLanguage()}${hash ? `#${hash}` : ""}`);
}

function openTab(): string {
  return document.querySelector<HTMLElement>(".tabs [aria-current=true]")?.dataset["tab"] ?? "map";
}

function open(tab: string): void {
  const found = [...document.querySelectorAll<HTMLElement>(".tabs [data-tab]")].find((each) => each.dataset["tab"] === tab);
  if (found && openTab() !== tab) found.click();
}

// Apply the address once the first data are there and whenever it is changed by a link,
// and write it after each change of the view.
export function followAddress(state: State, map: LevelMap): void {
  let timer = 0;
  let applied = false;
  const schedule = () => {
    clearTimeout(timer);
    timer = window.setTimeout(() => applied && write(state, map), DELAY_MS);
  };
  const apply = async (hash = location.hash.slice(1)) => {
    const view = readAddress(hash);
    open(view.tab ?? "map");
    if (view.cell !== state.selected) state.select(view.cell);
    // The link of a cell leaves time and map as they are.
    if (hash.includes("=")) await showTime(state, view);
    // The last, because a selection and a replay move the map to their cells.
    if (view.map) map.moveTo(view.map);
    applied = true;
    schedule();
  };
  state.addEventListener("cells", () => void (applied || apply()), { once: true });
  // Not location.hash: what was written since the click would be read instead of the link.
  addEventListener("hashchange", (event) => void apply(new URL(event.newURL).hash.slice(1)));
  for (const name of ["selected", "time", "replay"]) state.addEventListener(name, schedule);
  map.box.addEventListener("moved", schedule);
  document.querySelector(".tabs")?.addEventListener("click", schedule);
}

// A time that has left the slider is shown as a replay of the day around it.
async function showTime(state: State, view: View): Promise<void> {
  const { now } = state;
  if (!now) return;
  const isOld = view.atS !== null && view.atS < now.begin_s;
  const replay = view.replay ?? (isOld ? await dayAround(view.atS ?? 0) : null);
  if (replay) await state.startReplay(replay.fromS, replay.toS, replay.known).catch(() => undefined);
  else if (state.replay) await state.stopReplay();
  const isThere = view.atS !== null && (state.replay !== null || (view.atS >= now.begin_s && view.atS < now.at_s));
  if (isThere) await state.showTime(view.atS);
  else if (state.atS !== null && !state.replay) await state.showTime(null);
}

async function dayAround(atS: number): Promise<View["replay"]> {
  const bounds = await get<[number, number] | null>("api/replay/bounds");
  if (!bounds || atS < bounds[0] || atS > bounds[1]) return null;
  return { fromS: atS - HALF_DAY_S, toS: atS + HALF_DAY_S, known: "now" };
}
