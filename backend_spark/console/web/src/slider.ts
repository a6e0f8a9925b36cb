// Time slider over the last 72 hours or a replay: drag, arrow keys, play, step; replay of any dates, with levels as known now
// or as known then; the map under assumed rain.
import { el, replace } from "./dom";
import type { State, Known } from "./state";
import { t, formatTime, toDateField, fromDateField, formatDuration } from "./i18n";
import { preview, get } from "./api";
import { highestBadge } from "./badges";

const FRAME_MS = 200;
// Levels under assumed rain follow the present at most this often.
const WHAT_IF_MS = 30_000;
const SPEEDS_H = [1, 3, 6, 24, 72];

export class Slider {
  readonly box = el("div", { class: "slider" });
  private readonly range = el("input", { type: "range", min: 0, max: 432, value: 432 });
  private readonly words = el("output", {});
  private readonly button = el("button", { type: "button", class: "play", onclick: () => this.toggle() });
  private readonly speed = el("select", { class: "speed" }, ...SPEEDS_H.map((n) => el("option", { value: n }, t("perSecond", { n }))));
  private timer = 0;

  constructor(private readonly state: State) {
    this.range.addEventListener("input", () => this.show(Number(this.range.value)));
    this.range.addEventListener("keydown", (event) => {
      if (event.key !== " ") return;
      event.preventDefault();
      this.toggle();
    });
    state.addEventListener("now", () => this.draw());
    state.addEventListener("time", () => this.draw());
    state.addEventListener("replay", () => this.pause());
    // The first move then has only to draw.
    for (const event of ["pointerenter", "focusin"]) this.box.addEventListener(event, () => this.prepare());
  }

  prepare(): void {
    if (!this.state.replay) void this.state.loadHistory().catch(() => undefined);
  }

  build(): void {
    this.range.setAttribute("aria-label", t("slider"));
    this.speed.setAttribute("aria-label", t("speed"));
    this.speed.value = "3";
    const step = (name: "stepBack" | "stepOn", sign: string, by: number) => el("button", { type: "button", class: name, title: t(name), "aria-label": t(name), onclick: () => this.step(by) }, sign);
    const now = el("button", { type: "button", class: "now", onclick: () => this.toNow() }, t("now"));
    const { bar, button } = replayControls(this.state);
    const keys = el("div", { class: "keys" }, step("stepBack", "◀❙", -1), this.button, step("stepOn", "❙▶", 1), this.speed, now, button, whatIfButton(this.state));
    replace(this.box, bar, el("div", { class: "course" }, this.range, this.words), keys);
    this.pause();
    this.draw();
  }

  private show(position: number): void {
    const { fromS, stepS, last } = this.state.sliderRange();
    const { replay } = this.state;
    const step = Math.min(Math.max(position, 0), last);
    if (step >= last) void this.state.showTime(replay ? replay.toS : null);
    else void this.state.showTime(fromS + step * stepS);
  }

  private position(): number {
    const { fromS, stepS, last } = this.state.sliderRange();
    const { atS } = this.state;
    return atS === null ? last : Math.ceil((atS - fromS) / stepS);
  }

  private step(by: number): void {
    this.pause();
    this.show(this.position() + by);
  }

  private toNow(): void {
    this.pause();
    void (this.state.replay ? this.state.stopReplay() : this.state.showTime(null));
  }

  private pause(): void {
    clearInterval(this.timer);
    this.timer = 0;
    replace(this.button, `▶ ${t("play")}`);
  }

  private toggle(): void {
    if (this.timer) return this.pause();
    replace(this.button, `❚❚ ${t("pause")}`);
    if (this.position() >= this.state.sliderRange().last) this.show(0);
    let position = this.position();
    this.timer = window.setInterval(() => {
      const { stepS, last } = this.state.sliderRange();
      position = Math.min(position + (Number(this.speed.value) * 3.6 * FRAME_MS) / stepS, last);
      this.show(Math.floor(position));
      if (position >= last) this.pause();
    }, FRAME_MS);
  }

  private draw(): void {
    const { now, atS } = this.state;
    if (!now) return;
    this.range.max = String(this.state.sliderRange().last);
    this.range.value = String(this.position());
    this.box.classList.toggle("past", atS !== null);
    const present = now.newest_s === null ? t("noData") : `${t("present")} ${formatTime(now.at_s)}`;
    this.words.textContent = atS === null ? present : `${t("pastShown")}: ${formatTime(atS)}`;
    this.range.setAttribute("aria-valuetext", this.words.textContent);
  }
}

// The map under assumed rain, marked by a banner.
function whatIfButton(state: State): HTMLElement {
  const rain = el("input", { type: "number", min: 0, max: 200, step: 5, value: 40, name: "mm", "aria-label": t("perHour") });
  const hours = el("input", { type: "number", min: 1, max: 6, value: 2, name: "hours", "aria-label": t("hours") });
  const words = el("p", { role: "status" });
  const present = el("p", { class: "present-level" });
  const banner = el("div", { class: "assumed-banner" }, el("span", { class: "whatif" }, rain, t("perHour"), hours, t("hours")), words, present);
  const button = el("button", { type: "button", class: "if", "aria-pressed": "false" }, t("whatIf"));
  let newest = 0;
  let version = 0;
  let atMs = 0;
  const run = async () => {
    const number = ++newest;
    version = state.now?.version ?? 0;
    atMs = performance.now();
    const asked = { mm_per_h: Number(rain.value), hours: Number(hours.value) };
    try {
      const { levels } = await preview<{ levels: number[] }>("api/what-if", asked);
      // Another amount was asked for, or the present.
      if (number !== newest) return;
      state.assumed = levels;
      replace(words, t("whatIfActive", { mm: asked.mm_per_h, h: asked.hours }));
      replace(present, ...presentLevel(state));
    } catch (error) {
      if (number !== newest) return;
      state.assumed = null;
      replace(words, (error as Error).message);
    }
    state.emit("levels");
  };
  button.addEventListener("click", () => {
    const on = !banner.isConnected;
    button.setAttribute("aria-pressed", String(on));
    if (on) {
      if (state.atS !== null) void state.showTime(null);
      document.querySelector(".map")?.append(banner);
      void run();
    } else {
      newest++;
      banner.remove();
      state.assumed = null;
      state.emit("levels");
    }
  });
  // Another time, or the present, takes its place.
  for (const name of ["time", "replay"]) state.addEventListener(name, () => banner.isConnected && button.click());
  state.addEventListener("replay", () => button.toggleAttribute("disabled", state.replay !== null));
  // Its levels are those of the cells before.
  state.addEventListener("cells", () => {
    if (!banner.isConnected) return;
    state.assumed = null;
    void run();
  });
  state.addEventListener("now", () => {
    if (!banner.isConnected) return;
    replace(present, ...presentLevel(state));
    if (state.now?.version !== version && performance.now() - atMs > WHAT_IF_MS) void run();
  });
  for (const field of [rain, hours]) field.addEventListener("change", () => void run());
  return button;
}

const DAY_S = 86_400;

// The button that opens the form, and the bar that describes the replay.
function replayControls(state: State): { button: HTMLElement; bar: HTMLElement } {
  const bar = el("div", { class: "replay", hidden: true });
  const button = el("button", { type: "button", class: "dates", "aria-expanded": "false" }, t("replayDates"));
  const setOpen = (isOpen: boolean) => {
    bar.hidden = !isOpen;
    replace(bar);
    button.setAttribute("aria-expanded", String(isOpen));
  };
  button.addEventListener("click", () => {
    if (state.replay) return void state.stopReplay();
    setOpen(bar.hidden === true);
    if (!bar.hidden) showForm(state, bar).catch((error: unknown) => replace(bar, el("p", { class: "problem", role: "alert" }, (error as Error).message)));
  });
  state.addEventListener("replay", () => {
    setOpen(state.replay !== null);
    button.textContent = t(state.replay ? "replayEnd" : "replayDates");
    if (state.replay) showReplay(state, bar);
  });
  state.addEventListener("now", () => {
    if (state.replay) replace(bar.querySelector(".present-level") as Element, ...presentLevel(state));
  });
  return { button, bar };
}

async function showForm(state: State, bar: HTMLElement): Promise<void> {
  const bounds = await get<[number, number] | null>("api/replay/bounds");
  // A replay was opened by a link meanwhile.
  if (state.replay) return;
  if (!bounds) return replace(bar, el("p", {}, t("noData")));
  const [first, last] = bounds;
  const limits = { min: toDateField(first), max: toDateField(last), step: 600, required: true };
  const from = el("input", { type: "datetime-local", name: "from", ...limits, value: toDateField(Math.max(first, last - DAY_S)) });
  const to = el("input", { type: "datetime-local", name: "to", ...limits, value: toDateField(last) });
  const known = el("select", { name: "known" }, el("option", { value: "now" }, t("afterRevision")), el("option", { value: "then" }, t("beforeRevision")));
  const problem = el("p", { class: "problem", role: "alert" });
  const fields = el("form", { class: "form" }, el("label", {}, t("from"), from), el("label", {}, t("until"), to), el("label", {}, t("levelsAs"), known), el("button", { class: "primary", type: "submit" }, t("show")));
  fields.addEventListener("submit", (event) => {
    event.preventDefault();
    replace(problem, t("loading"));
    state.startReplay(fromDateField(from.value), fromDateField(to.value), known.value as Known).catch((error: unknown) => replace(problem, (error as Error).message));
  });
  replace(bar, fields, el("p", { class: "hint" }, t("availableRange", { from: formatTime(first), to: formatTime(last) })), problem);
  from.focus();
}

function showReplay(state: State, bar: HTMLElement): void {
  const { replay } = state;
  if (!replay) return;
  const words = [
    t(replay.known === "now" ? "knownNow" : "knownThen"),
    replay.revised ? t("revised", { n: replay.revised }) : null,
    replay.stepS > 600 ? t("frameCovers", { m: formatDuration(replay.stepS) }) : null,
    replay.tokens.length ? null : t(replay.known === "now" ? "noData" : "noDataThen"),
  ].filter((word): word is string => word !== null);
  replace(
    bar,
    el("p", { role: "status" }, el("b", {}, `${t("replay")} ${formatTime(replay.fromS)} – ${formatTime(replay.toS)}`), el("span", {}, words.join(t("separator")))),
    el("p", { class: "present-level" }, ...presentLevel(state)),
  );
}

// The highest present level stays visible during a replay, and under assumed rain.
export function presentLevel(state: State): (Node | string)[] {
  return [`${t("presentLevel")} `, highestBadge(state.present(), state.now?.nodes["silent"] ?? 0)];
}
