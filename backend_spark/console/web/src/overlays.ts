// Overlays of the map: zones, shelters, roads, districts; legend, opacity, upload, search.
import type * as maplibre from "maplibre-gl";
import { get, post, upload, type Session, disableWhile } from "./api";
import { el, replace } from "./dom";
import { t, type Key } from "./i18n";
import type { LevelMap } from "./map";
import { fetchNodes } from "./names";

interface Overlay {
  id: string;
  title: string;
  kinds: string[];
  features: number;
  who: string;
  at_s: number;
}

interface OverlayStyle {
  fill: string;
  line: string;
  width: number;
}

// Zones have the colours of the hazard maps. They are outlines with little fill, so that
// they are not taken for the yellow and red of the levels.
const STYLES: Record<string, OverlayStyle> = {
  warning_zone: { fill: "#ffd400", line: "#8a6d00", width: 1.6 },
  special_zone: { fill: "#ff2800", line: "#b00020", width: 2 },
  shelter: { fill: "#0b7a3b", line: "#ffffff", width: 1.5 },
  road: { fill: "#6b4a1f", line: "#6b4a1f", width: 2.4 },
  district: { fill: "#ffffff", line: "#4b5a68", width: 1 },
  place: { fill: "#33475a", line: "#ffffff", width: 1 },
};
const KINDS = Object.keys(STYLES);
const BELOW = "nodes";
const STORED = "yamamori-overlays";
const DEFAULT_OPACITY = 0.25;

interface Choice {
  on: boolean;
  opacity: number;
}

export class Overlays {
  private readonly list = el("ul", { class: "overlay-list" });
  private readonly problem = el("p", { class: "problem", role: "alert" });
  private readonly choices: Record<string, Choice> = readChoices();
  private shown: Overlay[] = [];

  constructor(
    private readonly map: LevelMap,
    private readonly session: Session,
  ) {
    const form = session.role === "chief" ? this.form() : null;
    const parts = [searchBox(map), el("h2", {}, t("overlays")), this.list, form, this.problem];
    map.box.append(el("details", { class: "overlays" }, el("summary", {}, t("overlaysAndSearch")), el("div", {}, ...parts)));
    map.whenDrawn(() => void this.load());
  }

  private async load(): Promise<void> {
    this.show(await get<Overlay[]>("api/overlays"));
  }

  private show(overlays: Overlay[]): void {
    const kept = new Set(overlays.map((each) => each.id));
    for (const each of this.shown) if (!kept.has(each.id)) this.map.remove(layerId(each));
    for (const each of overlays) if (!this.shown.some((known) => known.id === each.id)) this.map.add(layerId(each), this.layers(each), BELOW);
    this.shown = overlays;
    this.map.box.dataset["overlays"] = String(overlays.length);
    replace(this.list, ...(overlays.length ? overlays.map((each) => this.row(each)) : [el("li", { class: "hint" }, t("noOverlays"))]));
  }

  private choice(overlay: Overlay): Choice {
    // A list of addresses is there to be searched; its thousands of points hide the map.
    return this.choices[overlay.id] ?? { on: overlay.kinds.some((kind) => kind !== "place"), opacity: DEFAULT_OPACITY };
  }

  private choose(overlay: Overlay, choice: Choice): void {
    this.choices[overlay.id] = choice;
    localStorage.setItem(STORED, JSON.stringify(this.choices));
    this.map.setLayer(layerId(overlay), choice.on, choice.opacity);
  }

  private row(overlay: Overlay): HTMLElement {
    const on = el("input", { type: "checkbox", checked: this.choice(overlay).on });
    const opacity = el("input", { type: "range", min: 0, max: 80, value: Math.round(this.choice(overlay).opacity * 100), "aria-label": `${t("opacity")} ${overlay.title}` });
    const apply = () => this.choose(overlay, { on: on.checked, opacity: Number(opacity.value) / 100 });
    on.addEventListener("change", apply);
    opacity.addEventListener("input", apply);
    const legend = overlay.kinds.map((kind) => el("span", { class: "kind" }, el("i", { class: `overlay-swatch ${kind}` }), t(`overlay_${kind}` as Key)));
    const remove = this.session.role === "chief" && el("button", { type: "button", class: "remove", onclick: () => void this.remove(overlay) }, t("remove"));
    return el("li", { "data-overlay": overlay.id }, el("label", {}, on, el("b", {}, overlay.title)), el("div", { class: "legend" }, ...legend), el("div", { class: "tools" }, opacity, el("small", {}, t("overlayBy", { n: overlay.features, who: overlay.who })), remove));
  }

  private async remove(overlay: Overlay): Promise<void> {
    if (confirm(t("removeOverlay", { title: overlay.title }))) await this.change(() => post<Overlay[]>(`api/overlays/${overlay.id}/remove`));
  }

  private form(): HTMLElement {
    const file = el("input", { type: "file", name: "file", accept: ".geojson,.json,.zip,.csv", required: true });
    const title = el("input", { name: "title", maxlength: 100, required: true });
    const kind = el("select", { name: "kind" }, ...KINDS.map((each) => el("option", { value: each }, t(`overlay_${each}` as Key))));
    const send = el("button", { type: "submit", class: "primary" }, t("addOverlay"));
    const form = el("form", { class: "overlay-form" }, el("label", {}, t("overlayFile"), file), el("label", {}, t("overlayTitle"), title), el("label", {}, t("overlayKind"), kind), send);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const chosen = file.files?.[0];
      const query = new URLSearchParams({ title: title.value, kind: kind.value });
      const send = async (content: File) => {
        const all = await upload<Overlay[]>(`api/overlays?${query}`, content);
        form.reset();
        return all;
      };
      if (chosen) void disableWhile(form, () => this.change(() => send(chosen)));
    });
    return el("details", { class: "overlay-add" }, el("summary", {}, t("addOverlay")), form);
  }

  private async change(run: () => Promise<Overlay[]>): Promise<void> {
    this.problem.textContent = "";
    try {
      this.show(await run());
    } catch (error) {
      this.problem.textContent = (error as Error).message;
    }
  }

  private layers(overlay: Overlay): { source: maplibre.SourceSpecification; layers: maplibre.LayerSpecification[] } {
    const id = layerId(overlay);
    const { on, opacity } = this.choice(overlay);
    const of = (name: keyof OverlayStyle) => ["match", ["get", "kind"], ...KINDS.flatMap((kind) => [kind, STYLES[kind]?.[name] ?? ""]), name === "width" ? 1 : "#555"] as never;
    const shared = { source: id, layout: { visibility: on ? ("visible" as const) : ("none" as const) } };
    const areas = ["all", ["==", ["geometry-type"], "Polygon"], ["!=", ["get", "kind"], "district"]] as never;
    return {
      source: { type: "geojson", data: new URL(`api/overlays/${overlay.id}.geojson`, document.baseURI).href, buffer: 16, maxzoom: 14 },
      layers: [
        { id: `${id}-fill`, type: "fill", ...shared, filter: areas, paint: { "fill-color": of("fill"), "fill-opacity": opacity } },
        { id: `${id}-line`, type: "line", ...shared, filter: ["!=", ["geometry-type"], "Point"], paint: { "line-color": of("line"), "line-width": of("width") } },
        { id: `${id}-point`, type: "circle", ...shared, filter: ["all", ["==", ["geometry-type"], "Point"], ["!=", ["get", "kind"], "district"]] as never, paint: { "circle-radius": 6, "circle-color": of("fill"), "circle-stroke-color": of("line"), "circle-stroke-width": 2 } },
        {
          id: `${id}-name`,
          type: "symbol",
          source: id,
          minzoom: 12,
          filter: ["all", ["==", ["geometry-type"], "Point"], ["match", ["get", "kind"], ["shelter", "district", "place"], true, false]] as never,
          layout: { ...shared.layout, "text-field": ["get", "name"], "text-size": 13, "text-offset": [0, 0.9], "text-anchor": "top", "text-optional": true },
          paint: { "text-color": "#12283d", "text-halo-color": "#ffffff", "text-halo-width": 1.8 },
        },
      ],
    };
  }
}

function layerId(overlay: Overlay): string {
  return `overlay-${overlay.id.slice(0, 16)}`;
}

function readChoices(): Record<string, Choice> {
  try {
    const found = JSON.parse(localStorage.getItem(STORED) ?? "{}") as Record<string, Choice> | null;
    return found ?? {};
  } catch {
    return {};
  }
}

interface Found {
  name: string;
  kind: string;
  title: string;
  longitude: number;
  latitude: number;
}

const DELAY_MS = 250;
const MAX_NODES = 10;

function searchBox(map: LevelMap): HTMLElement {
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
