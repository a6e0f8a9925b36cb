// Ground of the map: tile packs of the console, and tiles from a server named in the settings.
import type * as maplibre from "maplibre-gl";

import type { Pack, Session } from "./api";

type Layer = maplibre.LayerSpecification;
type Style = maplibre.StyleSpecification;

const PLAIN = "#e9eef2";

export function hasGround(session: Session): boolean {
  return session.tiles !== null || (session.packs ?? []).length > 0;
}

export function groundStyle(session: Session): Style {
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

// Levels stay the strongest colours above a ground. Calm cells show the landscape.
export function levelOpacity(ground: boolean, level: number): number {
  if (!ground) return 0.92;
  if (level === 1) return 0.35;
  return [0, 6, 11].includes(level) ? 0.6 : 0.88;
}
