// Small marks of levels, flags and nodes, the same on every page.
import { el } from "./dom";
import { COLOURS, look } from "./looks";
import { levelName, t, type Key } from "./words";

export const NODE_STATES: Key[] = ["well", "late", "clock", "suspect", "silent"];

export function badge(level: number): HTMLElement {
  // Words stand beside the colour, not on it: no ink is readable on all of them.
  const block = el("i", {});
  block.style.backgroundImage = look(level);
  const whole = el("span", { class: "badge", "data-level": level }, block, el("span", {}, levelName(level)));
  whole.style.borderColor = level >= 2 && level <= 5 ? (COLOURS[level] ?? "") : "";
  return whole;
}

export function flagWord(flag: number | null): HTMLElement | null {
  if (flag === null || flag < 2) return null;
  return el("span", { class: `flag flag${flag}` }, `${t("qc")}: ${t(`flag${flag}` as Key)}`);
}
