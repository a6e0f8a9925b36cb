// Fields of an event, for the list of events and the window of one.
import { el } from "./dom";
import { cellLabel } from "./cellNames";
import { currentLanguage, formatTime, t, type Key } from "./i18n";
import type { EventRow } from "./eventTypes";

export function placeOf(event: EventRow): HTMLElement {
  if (event.cell) return el("a", { href: `#${event.cell}`, class: "place" }, cellLabel(event.cell));
  return el("b", {}, event.nodes.join(", "));
}

export function timesOf(event: EventRow): HTMLElement[] {
  const lasting = event.over_s === null ? t("eventLasts") : t("eventOver", { t: formatTime(event.over_s) });
  return [el("div", {}, t("eventSince", { t: formatTime(event.first_s) })), el("small", {}, lasting), event.messages ? el("small", {}, t("eventMessages", { n: event.messages })) : null].filter((part): part is HTMLElement => part !== null);
}

export function reasonsOf(event: EventRow): HTMLElement[] {
  const causes = event.causes.map((cause) => el("span", { class: "cause" }, t(`cause_${cause}` as Key)));
  const first = event.reasons.find((reason) => reason.en);
  return [el("div", { class: "causes" }, ...causes), el("div", {}, first?.[currentLanguage()] ?? "")];
}

export function stateOf(event: EventRow): HTMLElement[] {
  const word = el("b", { class: `state ${event.state}` }, t(`state_${event.state}`));
  if (!event.who) return [word];
  const line = el("small", { class: "seen" }, `${event.who} ${formatTime(event.state_s)}${event.text && ` – ${event.text}`}`);
  return [word, line];
}
