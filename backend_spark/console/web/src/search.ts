// Search of places, addresses and nodes by name; a result is shown on the map.
import { get } from "./api";
import { fetchNodes } from "./names";
import { el, replace } from "./dom";
import { t, type Key } from "./i18n";
import type { LevelMap } from "./map";

interface Found {
  name: string;
  kind: string;
  title: string;
  longitude: number;
  latitude: number;
}

const DELAY_MS = 250;
const MAX_NODES = 10;

export function searchBox(map: LevelMap): HTMLElement {
  const field = el("input", { type: "search", name: "place", placeholder: t("searchHint"), "aria-label": t("searchHint"), maxlength: 60 });
  const list = el("ul", { class: "found", "aria-live": "polite" });
  let timer = 0;
  let asked = 0;
  // Whether its answer is that which is shown.
  const run = async (): Promise<boolean> => {
    const number = ++asked;
    const text = field.value.trim();
    try {
      const found = text ? await search(text) : [];
      if (number !== asked) return false;
      const none = text ? [el("li", { class: "hint" }, t("nothingFound"))] : [];
      replace(list, ...(found.length ? found.map((each) => row(map, each)) : none));
      return true;
    } catch (error) {
      if (number === asked) replace(list, el("li", { class: "problem" }, (error as Error).message));
      return false;
    }
  };
  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = window.setTimeout(() => void run(), DELAY_MS);
  });
  const form = el("form", { class: "search", role: "search" }, field, list);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(timer);
    void run().then((isShown) => isShown && list.querySelector("button")?.click());
  });
  return form;
}

// What is searched; results are listed in this order.
const SOURCES: ((text: string) => Promise<Found[]>)[] = [findNodes, findInOverlays];

async function search(text: string): Promise<Found[]> {
  return (await Promise.all(SOURCES.map((find) => find(text)))).flat();
}

async function findInOverlays(text: string): Promise<Found[]> {
  return get<Found[]>(`api/search?${new URLSearchParams({ q: text })}`);
}

async function findNodes(text: string): Promise<Found[]> {
  const wanted = text.toLowerCase();
  const { id, longitude, latitude } = await fetchNodes();
  const found = id.flatMap((name, at) => (name.toLowerCase().includes(wanted) ? [{ name, kind: "node", title: t("node"), longitude: longitude[at] ?? 0, latitude: latitude[at] ?? 0 }] : []));
  return found.slice(0, MAX_NODES);
}

function row(map: LevelMap, found: Found): HTMLElement {
  const kind = found.kind === "node" ? t("node") : t(`overlay_${found.kind}` as Key);
  const show = () => map.showPlace([found.longitude, found.latitude], found.name);
  return el("li", {}, el("button", { type: "button", class: "pick", onclick: show }, el("b", {}, found.name), el("small", {}, kind === found.title ? kind : `${kind} · ${found.title}`)));
}
