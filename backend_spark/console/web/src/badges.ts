// Badges of levels, flags and node states.
import { el } from "./dom";
import { COLOURS, highestOf, patternUrl } from "./levelPatterns";
import { isHeld, presentName, severity, t, type Key } from "./i18n";

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
