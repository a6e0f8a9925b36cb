// Replay of any dates: from, to, and whether as known now or as known then.
import { el, replace } from "./dom";
import { LOOKS } from "./looks";
import { badge } from "./marks";
import type { Known } from "./played";
import { get, Refused } from "./server";
import type { State } from "./state";
import { inJapan, ofJapan, span, t, when } from "./words";

const DAY_S = 86_400;

// The button that opens the form, and the bar that says what is played.
export function replayDates(state: State): { button: HTMLElement; bar: HTMLElement } {
  const bar = el("div", { class: "replay", hidden: true });
  const button = el("button", { type: "button", class: "dates", "aria-expanded": "false" }, t("replayDates"));
  const open = (is: boolean) => {
    bar.hidden = !is;
    replace(bar);
    button.setAttribute("aria-expanded", String(is));
  };
  button.addEventListener("click", () => {
    if (state.replay) return void state.stop();
    open(bar.hidden === true);
    if (!bar.hidden) void form(state, bar);
  });
  state.addEventListener("replay", () => {
    open(state.replay !== null);
    button.textContent = t(state.replay ? "replayEnd" : "replayDates");
    if (state.replay) told(state, bar);
  });
  state.addEventListener("now", () => {
    if (state.replay) replace(bar.querySelector(".present-level") as Element, ...present(state));
  });
  return { button, bar };
}

async function form(state: State, bar: HTMLElement): Promise<void> {
  const bounds = await get<[number, number] | null>("api/replay/bounds");
  if (!bounds) return replace(bar, el("p", {}, t("noData")));
  const [first, last] = bounds;
  const limits = { min: inJapan(first), max: inJapan(last), step: 600, required: true };
  const from = el("input", { type: "datetime-local", name: "from", ...limits, value: inJapan(Math.max(first, last - DAY_S)) });
  const to = el("input", { type: "datetime-local", name: "to", ...limits, value: inJapan(last) });
  const known = el("select", { name: "known" }, el("option", { value: "now" }, t("afterRevision")), el("option", { value: "then" }, t("beforeRevision")));
  const problem = el("p", { class: "problem", role: "alert" });
  const fields = el("form", { class: "form" }, el("label", {}, t("from"), from), el("label", {}, t("until"), to), el("label", {}, t("levelsAs"), known), el("button", { class: "primary", type: "submit" }, t("show")));
  fields.addEventListener("submit", (event) => {
    event.preventDefault();
    replace(problem, t("loading"));
    state.play(ofJapan(from.value), ofJapan(to.value), known.value as Known).catch((error: unknown) => replace(problem, error instanceof Refused ? error.message : String(error)));
  });
  replace(bar, fields, el("p", { class: "hint" }, t("heldFrom", { from: when(first), to: when(last) })), problem);
  from.focus();
}

function told(state: State, bar: HTMLElement): void {
  const { replay } = state;
  if (!replay) return;
  const words = [
    t(replay.known === "now" ? "knownNow" : "knownThen"),
    replay.revised ? t("revised", { n: replay.revised }) : null,
    replay.stepS > 600 ? t("frameHolds", { m: span(replay.stepS) }) : null,
    replay.tokens.length ? null : t(replay.known === "now" ? "noData" : "nothingThen"),
  ].filter((word): word is string => word !== null);
  replace(
    bar,
    el("p", { role: "status" }, el("b", {}, `${t("replay")} ${when(replay.fromS)} – ${when(replay.toS)}`), el("span", {}, words.join(t("stop")))),
    el("p", { class: "present-level" }, ...present(state)),
  );
}

// Nobody should miss what happens while looking back.
function present(state: State): (Node | string)[] {
  const levels = new Set(state.present());
  return [`${t("presentIs")} `, badge(LOOKS.find((look) => levels.has(look)) ?? 0)];
}
