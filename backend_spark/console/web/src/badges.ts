// Badges of levels, flags and node states, and the official colours of the levels, each with a pattern for people who cannot distinguish
// the colours. A higher level has a denser pattern. Held levels (11 to 15) have the
// colour of the level mixed with grey, and half its pattern above the dashes of missing data.
import { el } from "./dom";
import { isHeld, presentName, severity, t, type Key } from "./i18n";

export const COLOURS: Record<number, string> = {
  0: "#d5dae0",
  1: "#ffffff",
  2: "rgb(242,231,0)",
  3: "rgb(255,40,0)",
  4: "rgb(170,0,170)",
  5: "rgb(12,0,12)",
  6: "#eceff2",
  11: "#c9ced4",
  12: "#ccc75b",
  13: "#d6735f",
  14: "#a65ba9",
  15: "#565a60",
};

const PATTERN_COLOURS: Record<number, string> = {
  0: "#8c97a3",
  1: "#ffffff",
  2: "#7d7600",
  3: "#ffd9d0",
  4: "#ffffff",
  5: "#ffffff",
  6: "#6b7785",
  11: "#4d5863",
  12: "#4f4b00",
  13: "#ffffff",
  14: "#ffffff",
  15: "#ffffff",
};

// A judged level comes before the same level held, so that a level that is reached is never
// summed up as unknown. Level 1 comes after it: no calm is stated for cells that are held.
export const LEVELS_BY_SEVERITY = [5, 15, 4, 14, 3, 13, 2, 12, 11, 1, 6, 0];
const SIZE = 16;

export function highestOf(levels: number[]): number {
  const found = new Set(levels);
  return LEVELS_BY_SEVERITY.find((each) => found.has(each)) ?? 0;
}

type Draw = (context: CanvasRenderingContext2D) => void;

function strokes(...lines: [number, number, number, number][]): Draw {
  return (context) => {
    context.beginPath();
    for (const [x1, y1, x2, y2] of lines) {
      context.moveTo(x1, y1);
      context.lineTo(x2, y2);
    }
    context.stroke();
  };
}

const RISING: [number, number, number, number][] = [[-4, 20, 20, -4], [-4, 4, 4, -4], [12, 20, 20, 12]];
const FALLING: [number, number, number, number][] = [[-4, -4, 20, 20], [12, -4, 20, 4], [-4, 12, 4, 20]];

const DASHES = strokes([0, 4, 6, 4], [8, 12, 14, 12]);

function held(level: number): Draw {
  return (context) => {
    context.save();
    context.beginPath();
    context.rect(0, 0, SIZE, SIZE / 2);
    context.clip();
    PATTERNS[level]?.(context);
    context.restore();
    strokes([0, 12, 6, 12], [8, 12, 14, 12])(context);
  };
}

const PATTERNS: Record<number, Draw> = {
  0: DASHES,
  1: () => undefined,
  2: (context) => {
    for (const [x, y] of [[4, 4], [12, 12]] as const) {
      context.beginPath();
      context.arc(x, y, 2, 0, 7);
      context.fill();
    }
  },
  3: strokes(...RISING),
  4: strokes(...RISING, ...FALLING),
  5: strokes([0, 4, 16, 4], [0, 12, 16, 12], [4, 0, 4, 16], [12, 0, 12, 16]),
  6: strokes([5, 5, 11, 11], [11, 5, 5, 11]),
  11: held(1),
  12: held(2),
  13: held(3),
  14: held(4),
  15: held(5),
};

export function patternTile(level: number, background: boolean): ImageData {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = SIZE;
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  if (background) {
    context.fillStyle = COLOURS[level] ?? "#fff";
    context.fillRect(0, 0, SIZE, SIZE);
  }
  context.strokeStyle = context.fillStyle = PATTERN_COLOURS[level] ?? "#000";
  context.lineWidth = level === 4 ? 1.2 : 1.6;
  PATTERNS[level]?.(context);
  return context.getImageData(0, 0, SIZE, SIZE);
}

// Gateways are squares and nodes are circles; a gateway that is gone is crossed out.
export function gatewayIcon(state: string): ImageData {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 22;
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  context.fillStyle = state === "well" ? "#17324d" : "#ffffff";
  context.strokeStyle = state === "gone" ? "#c40000" : "#17324d";
  context.lineWidth = 3;
  context.fillRect(3, 3, 16, 16);
  context.strokeRect(3, 3, 16, 16);
  if (state === "gone") strokes([3, 3, 19, 19], [19, 3, 3, 19])(context);
  return context.getImageData(0, 0, 22, 22);
}

const urls = new Map<number, string>();

// Colour and pattern of a level as a CSS image.
function patternUrl(level: number): string {
  const known = urls.get(level) ?? swatch(level, SIZE).toDataURL();
  urls.set(level, known);
  return `url(${known})`;
}

export function swatch(level: number, size = 22): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = size;
  canvas.className = "swatch";
  canvas.setAttribute("aria-hidden", "true");
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  const image = patternTile(level, true);
  for (let x = 0; x < size; x += SIZE) for (let y = 0; y < size; y += SIZE) context.putImageData(image, x, y);
  return canvas;
}

export const NODE_STATES: Key[] = ["well", "late", "clock", "suspect", "silent"];

export function badge(level: number, knownS = 0): HTMLElement {
  // The text is beside the colour, since no text colour is readable on all of them.
  const block = el("i", {});
  block.style.backgroundImage = patternUrl(level);
  const whole = el("span", { class: isHeld(level) ? "badge held" : "badge", "data-level": level }, block, el("span", {}, presentName(level, knownS)));
  whole.style.borderColor = severity(level) >= 2 ? (COLOURS[level] ?? "") : "";
  return whole;
}

// Why no calm can be stated; empty if all cells are judged and no node is silent.
export function unknownWords(levels: number[], silent: number): string {
  const unknown = levels.filter((level) => level < 1 || level > 5).length;
  return unknown || silent ? t("someUnknown", { n: unknown, m: silent }) : "";
}

// The highest level of cells. Level 1 is shown only where all is known.
export function highestBadge(levels: number[], silent: number): HTMLElement {
  const highest = highestOf(levels);
  const unknown = highest === 1 ? unknownWords(levels, silent) : "";
  return unknown ? el("b", { class: "unknown" }, unknown) : badge(highest);
}

export function flagBadge(flag: number | null): HTMLElement | null {
  if (flag === null || flag < 2) return null;
  return el("span", { class: `flag flag${flag}` }, `${t("qc")}: ${t(`flag${flag}` as Key)}`);
}

const OUTPUT_STATES = ["on", "off", "limited", "unknown", "drill", "failed"];

// State of a siren or lamp, as its node reports it.
export function outputBadge(name: string, state: string): HTMLElement {
  const known = OUTPUT_STATES.includes(state) ? state : "failed";
  return el("span", { class: `output ${known}`, "data-output": name }, `${name}: ${t(`output_${known}` as Key)}`);
}

// Whether the scoring job reads a file of the console.
export interface Job {
  state: "reads" | "unreported" | "reads_none" | "reads_other";
  path: string | null;
  expected: string;
}

export function jobState(job: Job, setting: "changes" | "reviews"): HTMLElement {
  const key = setting === "changes" ? "job" : "reviewJob";
  if (job.state === "reads") return el("p", { class: "hint job-reads" }, t(`${key}Reads`));
  const words = { unreported: t(`${key}Unreported`), reads_none: t(`${key}ReadsNone`), reads_other: t(`${key}ReadsOther`, { path: job.path ?? "" }) }[job.state];
  const line = job.state === "unreported" ? null : el("code", { class: "setting" }, `${setting} = "${job.expected}"`);
  return el("div", { class: "warn job-state", role: "status" }, words, line);
}
