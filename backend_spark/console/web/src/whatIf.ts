// What-if: the map under assumed rain, marked by a banner.
import { el, replace } from "./dom";
import { post } from "./api";
import type { State } from "./state";
import { t } from "./i18n";

export function whatIfButton(state: State): HTMLElement {
  const rain = el("input", { type: "number", min: 0, max: 200, step: 5, value: 40, name: "mm", "aria-label": t("perHour") });
  const hours = el("input", { type: "number", min: 1, max: 6, value: 2, name: "hours", "aria-label": t("hours") });
  const words = el("p", { role: "status" });
  const banner = el("div", { class: "assumed-banner" }, el("span", { class: "whatif" }, rain, t("perHour"), hours, t("hours")), words);
  const button = el("button", { type: "button", class: "if", "aria-pressed": "false" }, t("whatIf"));
  let newest = 0;
  const run = async () => {
    const number = ++newest;
    const asked = { mm_per_h: Number(rain.value), hours: Number(hours.value) };
    try {
      const { levels } = await post<{ levels: number[] }>("api/what-if", asked);
      // Another amount was asked for, or the present.
      if (number !== newest) return;
      state.assumed = levels;
      replace(words, t("whatIfActive", { mm: asked.mm_per_h, h: asked.hours }));
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
      document.querySelector(".map")?.append(banner);
      void run();
    } else {
      newest++;
      banner.remove();
      state.assumed = null;
      state.emit("levels");
    }
  });
  state.addEventListener("replay", () => {
    if (banner.isConnected) button.click();
    button.toggleAttribute("disabled", state.replay !== null);
  });
  for (const field of [rain, hours]) field.addEventListener("change", () => void run());
  return button;
}
