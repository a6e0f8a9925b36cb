// Events as the server sends them, and their fields, for the list of events and the window of one.
import { el } from "./dom";
import { cellLabel } from "./names";
import { currentLanguage, formatTime, t, type Key } from "./i18n";
import type { Reason } from "./api";

export type EventState = "open" | "acknowledged" | "checked" | "false_alarm" | "slope_failed" | "closed";

export const STATES: EventState[] = ["open", "acknowledged", "checked", "false_alarm", "slope_failed", "closed"];

export interface EventRow {
  number: number;
  cell: string | null;
  nodes: string[];
  first_s: number;
  last_s: number;
  over_s: number | null;
  peak: number;
  peak_s: number;
  // Of a message that came late; else 0.
  measured_s: number;
  causes: string[];
  messages: number;
  reasons: Reason[];
  state: EventState;
  state_s: number;
  who: string;
  text: string;
  // Newest entry that a person must know who decides.
  asked: number;
}

export interface HistoryLine {
  at_s: number;
  who: string;
  what: EventState | "opened" | "rose" | "cause" | "over" | "level" | "message";
  text?: string;
  step_s?: number;
  level?: number;
  measured_s?: number;
  node?: string | null;
  reasons?: Reason[];
}

export interface NotificationLine {
  rule: string;
  to: string;
  state: string;
  created_s: number;
  due_s: number;
  attempts: { number: number; at_s: number; outcome: string }[];
}

export interface EventDetail extends EventRow {
  history: HistoryLine[];
  notifications: NotificationLine[];
}

export function placeOf(event: EventRow): HTMLElement {
  if (event.cell) return el("a", { href: `#${event.cell}`, class: "place" }, cellLabel(event.cell));
  return el("b", {}, event.nodes.join(", "));
}

export function timesOf(event: EventRow): HTMLElement[] {
  // Outside all cells nothing judges that a slope is calm: an event there ends by silence.
  const lasting = event.over_s === null ? t("eventLasts") : t(event.cell ? "eventOver" : "eventQuiet", { t: formatTime(event.over_s) });
  return [el("div", {}, t("eventSince", { t: formatTime(event.first_s) })), event.measured_s ? el("b", { class: "late" }, t("eventMeasured", { t: formatTime(event.measured_s) })) : null, el("small", {}, lasting), event.messages ? el("small", {}, t("eventMessages", { n: event.messages })) : null].filter((part): part is HTMLElement => part !== null);
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
