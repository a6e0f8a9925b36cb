// Time over the last 72 hours: drag, arrow keys, play; the right end is now.
import { el, replace } from "./dom";
import type { State } from "./state";
import { whatIf } from "./whatif";
import { t, when } from "./words";

const FRAME_MS = 120;
const STRIDE = 3;

export class Slider {
  readonly box = el("div", { class: "slider" });
  private readonly range = el("input", { type: "range", min: 0, max: 432, value: 432, "aria-label": t("slider") });
  private readonly words = el("output", {});
  private timer = 0;

  constructor(private readonly state: State) {
    this.range.addEventListener("input", () => this.slide());
    state.addEventListener("now", () => this.draw());
    state.addEventListener("time", () => this.draw());
  }

  build(): void {
    this.range.setAttribute("aria-label", t("slider"));
    const play = el("button", { type: "button", class: "play", onclick: () => this.play(play) }, `▶ ${t("play")}`);
    const now = el("button", { type: "button", class: "now", onclick: () => this.toNow() }, t("now"));
    replace(this.box, play, this.range, this.words, now, whatIf(this.state));
    this.draw();
  }

  private last(): number {
    const { now } = this.state;
    return now ? (now.at_s - now.begin_s) / now.step_s : 432;
  }

  private slide(): void {
    const { now } = this.state;
    if (!now) return;
    const step = Number(this.range.value);
    void this.state.move(step >= this.last() ? null : now.begin_s + step * now.step_s);
  }

  private toNow(): void {
    clearInterval(this.timer);
    this.range.value = String(this.last());
    void this.state.move(null);
  }

  private play(button: HTMLElement): void {
    if (this.timer) {
      clearInterval(this.timer);
      this.timer = 0;
      button.textContent = `▶ ${t("play")}`;
      return;
    }
    button.textContent = `❚❚ ${t("pause")}`;
    if (Number(this.range.value) >= this.last()) this.range.value = "0";
    this.timer = window.setInterval(() => {
      const next = Number(this.range.value) + STRIDE;
      this.range.value = String(Math.min(next, this.last()));
      this.slide();
      if (next >= this.last()) this.play(button);
    }, FRAME_MS);
  }

  private draw(): void {
    const { now, atS } = this.state;
    if (!now) return;
    this.range.max = String(this.last());
    this.range.value = String(atS === null ? this.last() : (atS - now.begin_s) / now.step_s);
    this.box.classList.toggle("past", atS !== null);
    this.words.textContent = atS === null ? `${t("present")} ${when(now.at_s)}` : `${t("pastShown")}: ${when(atS)}`;
    this.range.setAttribute("aria-valuetext", this.words.textContent);
  }
}
