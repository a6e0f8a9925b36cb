// Map: cells as polygons in the colours and patterns of their levels, nodes, gateways; the ground below them: tile packs of the
// console, and tiles from a server named in the settings.
import type * as maplibre from "maplibre-gl";
import { el } from "./dom";
import { type Gateway, get, type Session, type Pack } from "./api";
import { CellLayer, boundsOf } from "./cellLayer";
import { gatewayIcon } from "./badges";
import { allPlaces, cellName, fetchNodes, fetchPlaces, placesIn } from "./names";
import type { State } from "./state";
import { formatAgo, severity, shortened, t, type Key } from "./i18n";

type Layer = maplibre.LayerSpecification;
type Style = maplibre.StyleSpecification;

const PLAIN = "#e9eef2";

// A whole name of 50 characters covers the cells around; the list has it.
const MAX_LABEL = 20;

function hasGround(session: Session): boolean {
  return session.tiles !== null || (session.packs ?? []).length > 0;
}

function groundStyle(session: Session): Style {
  const style: Style = { version: 8, sources: {}, layers: [{ id: "ground", type: "background", paint: { "background-color": PLAIN } }] };
  if (session.tiles) {
    style.sources["tiles"] = { type: "raster", tiles: [session.tiles], tileSize: 256 };
    style.layers.push({ id: "tiles", type: "raster", source: "tiles" });
  }
  (session.packs ?? []).forEach((pack, at) => addPack(style, pack, `pack${at}`));
  return style;
}

function addPack(style: Style, pack: Pack, id: string): void {
  const base = new URL(".", document.baseURI).href;
  const shared = { tiles: [base + pack.tiles], minzoom: pack.min_zoom, maxzoom: pack.max_zoom, bounds: pack.bounds, attribution: pack.attribution };
  if (pack.vector) {
    style.sources[id] = { type: "vector", ...shared };
    style.layers.push(...pack.layers.flatMap((name) => vectorLayers(id, name)));
  } else {
    style.sources[id] = { type: "raster", tileSize: 256, ...shared };
    style.layers.push({ id, type: "raster", source: id });
  }
}

// The common names of layers in OpenMapTiles, Protomaps and GSI's vector tiles. Other
// layers are drawn in grey, so that every vector pack shows something.
interface LayerStyle {
  area?: string;
  line?: string;
  width?: number;
}
const STYLES: [RegExp, LayerStyle][] = [
  [/^(water|waterarea|wa|ocean|lake)/i, { area: "#c5dcec", line: "#8fb8d4" }],
  [/(waterway|river|rvrcl|wl|wstrl)/i, { line: "#8fb8d4", width: 1.4 }],
  [/(contour|cntr)/i, { line: "#c9b595", width: 0.6 }],
  [/(boundary|boundaries|admbdry|admarea)/i, { line: "#9a8fae", width: 1 }],
  [/(transport|road|rdcl|rdedg)/i, { line: "#a39a8b", width: 1.6 }],
  [/rail/i, { line: "#7b7b7b", width: 1.2 }],
  [/(building|bldg|bld)/i, { area: "#d9d2c8", line: "#c2b9ac" }],
  [/(landcover|landuse|park|natural|earth)/i, { area: "#e3ead9" }],
];
const OTHER: LayerStyle = { line: "#b3b3b3", width: 0.6 };
const NAMES = ["coalesce", ["get", "name:ja"], ["get", "name"], ["get", "vt_text"], ""];

function vectorLayers(source: string, name: string): Layer[] {
  const style = STYLES.find(([pattern]) => pattern.test(name))?.[1] ?? OTHER;
  const shared = { source, "source-layer": name };
  const found: Layer[] = [];
  if (style.area) found.push({ id: `${source}-${name}-area`, type: "fill", ...shared, filter: ["==", ["geometry-type"], "Polygon"], paint: { "fill-color": style.area } });
  if (style.line) found.push({ id: `${source}-${name}-line`, type: "line", ...shared, paint: { "line-color": style.line, "line-width": style.width ?? 0.8 } });
  found.push({
    id: `${source}-${name}-names`,
    type: "symbol",
    ...shared,
    filter: ["==", ["geometry-type"], "Point"],
    layout: { "text-field": NAMES as never, "text-size": 12, "text-padding": 6 },
    paint: { "text-color": "#46525e", "text-halo-color": "#ffffff", "text-halo-width": 1.4 },
  });
  return found;
}

// A file of its own, which is parsed beside the code and the data of the page.
const loading = import("maplibre-gl");
type Library = Awaited<typeof loading>;

const NODE_COLOURS = ["match", ["get", "state"], "well", "#0a6cb5", "silent", "#ffffff", "suspect", "#e08a00", "#6aa9d8"];

const GATEWAY_STATES = ["well", "silent", "gone"];
const REFRESH_MS = 60_000;
const PLACE_ZOOM = 14;
// Around the cells, where the map has its controls.
const FREE = { top: 40, right: 60, bottom: 80, left: 40 };
const MAX_FIT_ZOOM = 14;

export interface MapPosition {
  latitude: number;
  longitude: number;
  zoom: number;
}

const SHIKOKU: MapPosition = { latitude: 34.5, longitude: 134, zoom: 6 };

export class LevelMap {
  readonly box = el("div", { class: "map", role: "application", tabindex: "-1" });
  private map: maplibre.Map | null = null;
  private library: Library | null = null;
  private fitted = false;
  private wanted: MapPosition | null = null;
  private ready = false;
  private frame = 0;
  private gateways: Gateway[] = [];
  private readonly layer: CellLayer;
  // Cells that are drawn.
  private drawn: string[] | null = null;
  // What waits for the first picture of the cells, and for all of the map, so that nothing
  // delays the levels; null after it.
  private drawnBeside: (() => void)[] | null = [];
  private waiting: (() => void)[] | null = [];
  // Cells whose names are drawn.
  private named: string[] | null = null;
  private names = "";

  constructor(
    private readonly state: State,
    private readonly session: Session,
    private readonly openNode: (id: string) => void,
  ) {
    this.layer = new CellLayer(hasGround(session));
    state.addEventListener("cells", () => this.scheduleDraw());
    state.addEventListener("levels", () => this.scheduleDraw());
    state.addEventListener("selected", () => this.drawSelection());
    state.addEventListener("replay", () => this.onReplay());
  }

  // With the first cells, so that the first picture shows them; or without an answer.
  start(): void {
    const first = new Promise<void>((resolve) => {
      for (const name of ["cells", "now"]) this.state.addEventListener(name, () => resolve(), { once: true });
    });
    void Promise.all([loading, first]).then(
      ([library]) => this.open(library),
      () => this.fail(),
    );
  }

  private fail(): void {
    this.box.append(el("p", { class: "failed" }, t("mapFailed")));
    this.finishPicture();
    void this.drawNodes();
  }

  private open(library: Library): void {
    this.library = library;
    library.setWorkerUrl(new URL("static/map-worker.mjs", document.baseURI).href);
    const { wanted } = this;
    const bounds = wanted ? null : boundsOf(this.state.cells.corners);
    this.fitted = wanted !== null || bounds !== null;
    const start = wanted ?? SHIKOKU;
    try {
      this.map = new library.Map({
        container: this.box,
        style: groundStyle(this.session),
        ...(bounds ? { bounds, fitBoundsOptions: { padding: FREE, maxZoom: MAX_FIT_ZOOM } } : { center: [start.longitude, start.latitude] as [number, number], zoom: start.zoom }),
        maxZoom: 17,
        locale: { "NavigationControl.ZoomIn": t("zoomIn"), "NavigationControl.ZoomOut": t("zoomOut"), "Map.Title": t("map") },
        attributionControl: hasGround(this.session) ? { compact: false } : false,
        fadeDuration: 0,
        dragRotate: false,
        pitchWithRotate: false,
      });
    } catch {
      this.fail();
      return;
    }
    this.map.addControl(new library.NavigationControl({ showCompass: false }), "top-right");
    this.map.addControl(new library.ScaleControl({}), "bottom-right");
    this.map.touchZoomRotate.disableRotation();
    this.map.once("style.load", (event) => {
      dropSky(event.target);
      this.drawFirst();
    });
    // The map does not restore this layer with its context.
    this.map.on("webglcontextrestored", () => this.map?.once("idle", () => this.addCells()));
    this.map.on("idle", () => this.onIdle());
    addEventListener("beforeprint", () => this.copyForPrint());
  }

  // WebGL forgets what it has drawn: without a copy, paper shows an empty map.
  private copyForPrint(): void {
    const map = this.map?.redraw();
    if (!map) return;
    const drawn = map.getCanvas();
    const copy = el("canvas", { class: "print-map", width: drawn.width, height: drawn.height });
    copy.getContext("2d")?.drawImage(drawn, 0, 0);
    this.box.querySelector(".print-map")?.remove();
    this.box.append(copy);
  }

  // All in the frame in which the style is there: each frame waits for its place among other
  // programs, and copies the picture. The second drawing finds nothing to do, and ends it.
  private drawFirst(): void {
    this.addCells();
    cancelAnimationFrame(this.frame);
    this.map?.redraw().redraw();
    setTimeout(() => this.finishPicture());
  }

  private finishPicture(): void {
    const { drawnBeside } = this;
    this.drawnBeside = null;
    drawnBeside?.forEach((run) => run());
  }

  private addCells(): void {
    const later = this.map?.getLayersOrder().find((id) => id === "nodes" || id.startsWith("overlay-"));
    this.map?.addLayer(this.layer, later);
    this.ready = true;
    this.draw();
  }

  // All other layers than the ground and the cells.
  private addLayers(map: maplibre.Map): void {
    const empty = { type: "FeatureCollection" as const, features: [] };
    for (const state of GATEWAY_STATES) map.addImage(`gateway-${state}`, gatewayIcon(state));
    for (const id of ["mark", "nodes", "gateways", "names"]) map.addSource(id, { type: "geojson", data: empty, buffer: 16, maxzoom: 12 });
    map.addLayer({
      id: "nodes",
      type: "circle",
      source: "nodes",
      minzoom: 10,
      paint: { "circle-radius": 5, "circle-color": NODE_COLOURS as never, "circle-stroke-color": "#12283d", "circle-stroke-width": 1.6 },
    });
    map.addLayer({
      id: "gateways",
      type: "symbol",
      source: "gateways",
      layout: { "icon-image": ["concat", "gateway-", ["get", "state"]] as never, "icon-allow-overlap": true },
    });
    // Without glyphs in the style, letters are drawn with the fonts of the machine.
    map.addLayer({
      id: "names",
      type: "symbol",
      source: "names",
      minzoom: 10.5,
      layout: { "text-field": ["get", "name"], "text-size": 13, "text-anchor": "top", "text-offset": [0, 0.7], "symbol-sort-key": ["get", "rank"], "text-max-width": 9 },
      paint: { "text-color": "#12283d", "text-halo-color": "#ffffff", "text-halo-width": 2 },
    });
    map.addLayer({ id: "mark", type: "line", source: "mark", paint: { "line-color": "#00a2ff", "line-width": 4 } });
    this.listen(map);
    this.drawSelection();
    this.onReplay();
  }

  whenDrawn(run: () => void): void {
    this.waiting?.push(run);
  }

  // At once after the first picture of the cells, whose ground may still be on the way.
  afterPicture(run: () => void): void {
    if (this.drawnBeside) this.drawnBeside.push(run);
    else run();
  }

  // Layers of one source, below another layer.
  add(id: string, what: { source: maplibre.SourceSpecification; layers: maplibre.LayerSpecification[] }, below: string): void {
    this.map?.addSource(id, what.source);
    for (const layer of what.layers) this.map?.addLayer(layer, below);
  }

  remove(id: string): void {
    for (const layer of this.layersOf(id)) this.map?.removeLayer(layer.id);
    this.map?.removeSource(id);
  }

  setLayer(id: string, on: boolean, opacity: number): void {
    for (const layer of this.layersOf(id)) {
      this.map?.setLayoutProperty(layer.id, "visibility", on ? "visible" : "none");
      if (layer.type === "fill") this.map?.setPaintProperty(layer.id, "fill-opacity", opacity);
    }
  }

  private layersOf(source: string): maplibre.LayerSpecification[] {
    return (this.map?.getStyle().layers ?? []).filter((layer) => "source" in layer && layer.source === source);
  }

  position(): MapPosition | null {
    // Until the library is there, the place at which the map will be opened.
    if (!this.map) return this.wanted;
    const centre = this.map.getCenter();
    return this.fitted ? { latitude: centre.lat, longitude: centre.lng, zoom: this.map.getZoom() } : null;
  }

  // Before the library is there, the map is opened at this place.
  moveTo(place: MapPosition): void {
    this.fitted = true;
    this.wanted = place;
    this.map?.jumpTo({ center: [place.longitude, place.latitude], zoom: place.zoom });
  }

  showPlace(place: [number, number], name: string): void {
    if (!this.map || !this.library) return;
    this.map.jumpTo({ center: place, zoom: Math.max(this.map.getZoom(), PLACE_ZOOM) });
    new this.library.Popup({ closeButton: false }).setLngLat(place).setText(name).addTo(this.map);
  }

  private scheduleDraw(): void {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.draw());
  }

  private listen(map: maplibre.Map): void {
    map.on("click", (event) => {
      const found = map.queryRenderedFeatures(event.point, { layers: ["gateways", "nodes"] })[0];
      const token = this.state.cells.tokens[this.layer.at(event.lngLat)];
      if (found?.layer.id === "gateways") this.showGateway(String(found.properties["id"]));
      else if (found) this.openNode(String(found.properties["id"]));
      else if (token) this.state.select(token);
    });
    map.on("mousemove", (event) => {
      const isOver = this.layer.at(event.lngLat) >= 0 || map.queryRenderedFeatures(event.point, { layers: ["gateways", "nodes"] }).length > 0;
      map.getCanvas().style.cursor = isOver ? "pointer" : "";
    });
    map.on("moveend", () => this.box.dispatchEvent(new Event("moved")));
  }

  private onIdle(): void {
    this.box.dataset["idle"] = performance.now().toFixed(0);
    // The picture is copied to the screen at the end of this frame.
    if (this.waiting || !this.box.dataset["shownMs"]) setTimeout(() => this.onPicture());
  }

  private onPicture(): void {
    const { dataset } = this.box;
    const isFirst = Number(dataset["cells"]) > 0 && !dataset["shownMs"];
    if (isFirst) dataset["shownMs"] = performance.now().toFixed(0);
    const { waiting } = this;
    this.waiting = null;
    if (waiting && this.map) this.addLayers(this.map);
    waiting?.forEach((run) => run());
    if (!isFirst) return;
    this.drawNodesAndGateways();
    setInterval(() => document.hidden || this.drawNodesAndGateways(), REFRESH_MS);
  }

  private drawNodesAndGateways(): void {
    void this.drawNodes();
    void this.drawGateways();
  }

  private source(id: string): maplibre.GeoJSONSource | undefined {
    return this.map?.getSource(id);
  }

  private draw(): void {
    const { tokens, corners } = this.state.cells;
    // A replay without cells clears the map, so that the present is not shown as the past.
    if (!this.ready || !(tokens.length || this.state.replay)) return;
    if (!this.fitted) this.fit();
    if (this.drawn !== tokens) this.layer.setCells(corners);
    this.drawn = tokens;
    this.layer.setLevels(this.state.levels());
    this.box.dataset["cells"] = String(tokens.length);
    if (this.named !== tokens) this.drawNames();
    this.drawSelection();
  }

  // Names of places; where they collide, that of the highest level is drawn.
  private drawNames(): void {
    const { tokens, corners } = this.state.cells;
    const levels = this.state.levels();
    this.named = tokens;
    const features = tokens.flatMap((token, at) => {
      const full = placesIn(token).length ? cellName(token) : "";
      if (!full) return [];
      const name = shortened(full, MAX_LABEL);
      const [a, , c] = ring(corners[at] ?? []);
      const middle = a && c ? [(a[0] + c[0]) / 2, (a[1] + c[1]) / 2] : [0, 0];
      return [{ type: "Feature" as const, properties: { name, rank: -severity(levels[at] ?? 0) }, geometry: { type: "Point" as const, coordinates: middle } }];
    });
    this.source("names")?.setData({ type: "FeatureCollection", features });
    this.box.dataset["names"] = String(features.length);
  }

  // A replay hides nodes and gateways, which are of the present, and shows its cells.
  private onReplay(): void {
    if (!this.ready) return;
    const { replay } = this.state;
    for (const layer of ["nodes", "gateways"]) this.map?.setLayoutProperty(layer, "visibility", replay ? "none" : "visible");
    const view = this.map?.getBounds();
    if (!this.state.cells.corners.some((corner) => view?.contains(ring(corner)[0] ?? [0, 0]))) this.fit();
  }

  fit(): void {
    const bounds = boundsOf(this.state.cells.corners);
    if (!bounds) return;
    this.map?.fitBounds(bounds, { padding: FREE, maxZoom: MAX_FIT_ZOOM, animate: false });
    this.fitted = true;
  }

  private async drawNodes(): Promise<void> {
    const [nodes] = await Promise.all([fetchNodes(), fetchPlaces()]);
    this.state.emit("places");
    const names = JSON.stringify([nodes.id, nodes.cell, allPlaces()]);
    // An open panel is drawn again for new names only: it would lose the focus. The map
    // stays where it is.
    if (names !== this.names && this.state.selected) this.state.emit("levels");
    this.names = names;
    if (!this.ready) return;
    this.drawNames();
    const features = nodes.id.map((id, at) => ({
      type: "Feature" as const,
      properties: { id, state: nodes.state[at] ?? "" },
      geometry: { type: "Point" as const, coordinates: [nodes.longitude[at] ?? 0, nodes.latitude[at] ?? 0] },
    }));
    this.source("nodes")?.setData({ type: "FeatureCollection", features });
    this.box.dataset["nodes"] = String(features.length);
  }

  private async drawGateways(): Promise<void> {
    this.gateways = await get<Gateway[]>("api/gateways");
    const features = this.gateways.flatMap(({ id, state, place }) =>
      place ? [{ type: "Feature" as const, properties: { id, state }, geometry: { type: "Point" as const, coordinates: [place[1], place[0]] } }] : [],
    );
    this.source("gateways")?.setData({ type: "FeatureCollection", features });
    this.box.dataset["gateways"] = String(features.length);
  }

  private showGateway(id: string): void {
    const found = this.gateways.find((each) => each.id === id);
    if (!found?.place || !this.map || !this.library) return;
    const now = this.state.now?.now_s ?? 0;
    const received = found.received_s === null ? "–" : formatAgo(now - found.received_s);
    const rows: [Key, string][] = [["state", t(found.state as Key)], ["place", t(found.exact ? "placeExact" : "placeAbout")], ["area", found.areas.join(" ")], ["nodesServed", String(found.nodes)], ["lastReceived", received]];
    const words = el("div", { class: "gateway-words" }, el("b", {}, `${t("gateway")} ${id}`), el("dl", { class: "facts" }, ...rows.flatMap(([name, text]) => [el("dt", {}, t(name)), el("dd", {}, text)])));
    new this.library.Popup({ maxWidth: "320px" }).setLngLat([found.place[1], found.place[0]]).setDOMContent(words).addTo(this.map);
  }

  private drawSelection(): void {
    if (!this.ready) return;
    const at = this.state.cells.tokens.indexOf(this.state.selected ?? "");
    const features =
      at < 0
        ? []
        : [{ type: "Feature" as const, properties: {}, geometry: { type: "Polygon" as const, coordinates: [ring(this.state.cells.corners[at] ?? [])] } }];
    this.source("mark")?.setData({ type: "FeatureCollection", features });
  }

  goTo(token: string): void {
    const at = this.state.cells.tokens.indexOf(token);
    const [corner] = ring(this.state.cells.corners[at] ?? []);
    if (corner && this.map && !this.map.getBounds().contains(corner)) this.map.jumpTo({ center: corner });
  }
}

function ring(corner: number[]): [number, number][] {
  const points: [number, number][] = [];
  for (let at = 0; at + 1 < corner.length; at += 2) points.push([(corner[at] ?? 0) / 1e6, (corner[at + 1] ?? 0) / 1e6]);
  const first = points[0];
  return first ? [...points, first] : points;
}

// The library draws a sky over the whole picture in each frame, also where none is seen:
// half of the work of a first picture that is drawn in software.
function dropSky(map: maplibre.Map): void {
  Object.assign(map.style.sky ?? {}, { getEvaluated: () => undefined });
}
