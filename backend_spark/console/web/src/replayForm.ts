// Replay of any dates, with levels as known now or as known then.
import { el, replace } from "./dom";
import { highestBadge } from "./badges";
import type { Known } from "./replayData";
import { get } from "./api";
import type { State } from "./state";
import { toDateField, fromDateField, formatDuration, t, formatTime } from "./i18n";

const DAY_S = 86_400;

// The button that opens the form, and the bar that describes the replay.
export function replayControls(state: State): { button: HTMLElement; bar: HTMLElement } {
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
