// What if it rains: assumed rain, and the map as it would be. Never mixed up with now.
import { el } from "./dom";
import { post, Refused } from "./server";
import type { State } from "./state";
import { t } from "./words";

export function whatIf(state: State): HTMLElement {
  const rain = el("input", { type: "number", min: 0, max: 200, step: 5, value: 40, name: "mm", "aria-label": t("perHour") });
  const hours = el("input", { type: "number", min: 1, max: 6, value: 2, name: "hours", "aria-label": t("hours") });
  const fields = el("span", { class: "whatif", hidden: true }, rain, t("perHour"), hours, t("hours"));
  const button = el("button", { type: "button", class: "if", "aria-pressed": "false" }, t("whatIf"));
  const run = async () => {
    const asked = { mm_per_h: Number(rain.value), hours: Number(hours.value) };
    try {
      state.assumed = (await post<{ levels: number[] }>("api/what-if", asked)).levels;
      banner(t("whatIfShown", { mm: asked.mm_per_h, h: asked.hours }));
    } catch (error) {
      state.assumed = null;
      banner(error instanceof Refused ? error.message : String(error));
    }
    state.tell("levels");
  };
  button.addEventListener("click", () => {
    const on = fields.hidden;
    fields.hidden = !on;
    button.setAttribute("aria-pressed", String(on));
    if (on) void run();
    else {
      state.assumed = null;
      banner("");
      state.tell("levels");
    }
  });
  for (const field of [rain, hours]) field.addEventListener("change", () => void run());
  return el("span", { class: "whatif" }, fields, button);
}

function banner(words: string): void {
  document.querySelector(".assumed-banner")?.remove();
  if (words) document.querySelector(".map")?.append(el("div", { class: "assumed-banner", role: "status" }, words));
}
