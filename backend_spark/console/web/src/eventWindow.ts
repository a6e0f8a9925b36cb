// Window of an event: what happened, what was decided, who was notified, and a decision of one's own; fields of an event, and
// notifications, which the list of events has too.
import { el, replace } from "./dom";
import { disableWhile, oneAtATime, RETRY_MS, discardDraft, keepDraft, get, isConflict, post, type Session, type Reason } from "./api";
import { badge } from "./badges";
import { currentLanguage, formatTime, levelName, t, type Key } from "./i18n";
import { cellLabel } from "./names";

export type EventState = "open" | "acknowledged" | "checked" | "false_alarm" | "slope_failed" | "closed";

export const STATES: EventState[] = ["open", "acknowledged", "checked", "false_alarm", "slope_failed", "closed"];

export interface EventRow {
  number: number;
  cell: string | null;
  nodes: string[];
  first_s: number;
  last_s: number;
  over_s: number | null;
  // Last judgement (0: none) of the cell of an event that lasts, if it cannot be judged now.
  lost_s: number | null;
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

interface HistoryLine {
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

interface NotificationLine {
  rule: string;
  to: string;
  state: string;
  created_s: number;
  due_s: number;
  attempts: { number: number; at_s: number; outcome: string }[];
}

interface EventDetail extends EventRow {
  history: HistoryLine[];
  notifications: NotificationLine[];
}

export function placeOf(event: EventRow): HTMLElement {
  if (event.cell) return el("a", { href: `#${event.cell}`, class: "place" }, cellLabel(event.cell));
  return el("b", {}, event.nodes.join(", "));
}

export function timesOf(event: EventRow): HTMLElement[] {
  // Outside all cells nothing judges that a slope is calm: an event there ends by silence.
  
  const lost = event.lost_s === null ? null : el("b", { class: "late" }, t("eventLost", { t: event.lost_s ? formatTime(event.lost_s) : t("missing") }));
  const lasting = event.over_s === null ? t("eventLasts") : t(event.cell ? "eventOver" : "eventQuiet", { t: formatTime(event.over_s) });
  return [el("div", {}, t("eventSince", { t: formatTime(event.first_s) })), event.measured_s ? el("b", { class: "late" }, t("eventMeasured", { t: formatTime(event.measured_s) })) : null, event.peak_s > event.first_s ? el("div", { class: "peak" }, t("eventPeak", { t: formatTime(event.peak_s), level: levelName(event.peak) })) : null, lost ?? el("small", {}, lasting), event.messages ? el("small", {}, t("eventMessages", { n: event.messages })) : null].filter((part): part is HTMLElement => part !== null);
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

export function showEvent(number: number, session: Session, canEdit: boolean): void {
  const top = el("div", {});
  const facts = el("div", {});
  const history = el("div", { class: "history" });
  // Of the last decision; what others do next does not take it away.
  const refused = el("p", { class: "problem", role: "alert" });
  const problem = el("p", { class: "problem", role: "alert" });
  let seen: number[] = [];
  let again = 0;
  const load = oneAtATime(async () => {
    clearTimeout(again);
    try {
      const event = await get<EventDetail>(`api/events/${number}`);
      draw(event, top, facts, history);
      if (!seen.length) form?.querySelectorAll("button").forEach((button) => (button.disabled = false));
      seen = [event.asked];
      replace(problem);
    } catch (error) {
      problem.textContent = (error as Error).message;
      again = window.setTimeout(() => window_.isConnected && void load(), RETRY_MS);
    }
  });
  const close = el("button", { type: "button", class: "close", onclick: () => window_.close() }, t("close"));
  const form = canEdit ? decisionForm(number, session, () => seen, load, refused) : null;
  const window_ = el("dialog", { class: "node-window event-window", "aria-label": t("eventDetails") }, el("div", { class: "head" }, top, close), facts, refused, problem, form, history);
  // The link opens the map with its cell, which the window would cover.
  top.addEventListener("click", (event) => (event.target as Element).closest("a") && window_.close());
  // The form is not drawn anew when others act: only the parts around it.
  const refresh = () => void load();
  addEventListener("yamamori-events", refresh);
  window_.addEventListener("close", () => (removeEventListener("yamamori-events", refresh), window_.remove()));
  document.body.append(window_);
  window_.showModal();
  void load();
}

function draw(event: EventDetail, top: HTMLElement, facts: HTMLElement, history: HTMLElement): void {
  replace(top, badge(event.peak), placeOf(event));
  const reasons = el("ul", { class: "reasons" }, ...event.reasons.filter((r) => r.en).map((reason) => el("li", {}, reason[currentLanguage()])));
  replace(facts, ...timesOf(event), ...stateOf(event), reasons);
  const notified = event.notifications.length ? [el("h3", {}, t("notifications")), el("ul", { class: "deliveries" }, ...event.notifications.map(notificationLine))] : [];
  replace(history, el("h3", {}, t("eventHistory")), el("ul", {}, ...event.history.map((line) => historyLine(line, event.cell))), ...notified);
}

// One click decides; the time of a failure is asked for before it is recorded. Nothing is decided before the event is shown.
function decisionForm(number: number, session: Session, seen: () => number[], done: () => Promise<void>, refused: HTMLElement): HTMLElement {
  const name = `event ${number}`;
  const remark = el("textarea", { name: "remark", placeholder: t("remark"), "aria-label": t("remark"), maxlength: 2000 });
  keepDraft(remark, session, name);
  const decide = async (state: EventState, time = "") => {
    const text = remark.value;
    replace(refused);
    try {
      await post("api/events/state", { events: [number], state, text, time, seen: seen() });
      discardDraft(remark, session, name, text);
      failed.hidden = true;
      await done();
    } catch (error) {
      refused.textContent = isConflict(error) ? t("eventChanged") : (error as Error).message;
      if (isConflict(error)) await done();
    }
  };
  const time = el("input", { type: "datetime-local", name: "time" });
  const failed = el("form", { class: "form", hidden: true }, el("label", {}, t("eventFailedAt"), time), el("button", { class: "primary", type: "submit", disabled: true }, t("eventDecide")));
  failed.addEventListener("submit", (submitted) => (submitted.preventDefault(), void send("slope_failed", time.value)));
  const choose = (state: EventState) => (state === "slope_failed" ? ((failed.hidden = false), time.focus()) : void send(state));
  const states: EventState[] = [...STATES.slice(1), "open"];
  const buttons = states.map((state) => el("button", { type: "button", "data-decide": state, disabled: true, onclick: () => choose(state) }, t(state === "open" ? "eventReopen" : `state_${state}`)));
  const box = el("div", { class: "decision" }, remark, el("div", { class: "chips" }, ...buttons), failed);
  const send = (state: EventState, at = "") => disableWhile(box, () => decide(state, at));
  return box;
}

function historyLine(line: HistoryLine, cell: string | null): HTMLElement {
  const isDecision = (STATES as string[]).includes(line.what);
  const when = formatTime(isDecision ? line.at_s : (line.step_s ?? line.at_s));
  const what = isDecision ? `${line.who}: ${t(`state_${line.what as EventState}`)}` : t(`history_${line.what === "over" && !cell ? "quiet" : line.what}` as Key, { n: line.level ?? "", node: line.node ?? "" });
  const why = line.reasons?.find((reason) => reason.en)?.[currentLanguage()] ?? line.text ?? "";
  const late = line.measured_s ? `（${t("eventMeasured", { t: formatTime(line.measured_s) })}）` : "";
  return el("li", {}, el("b", {}, `${when} ${what}${late}`), why ? el("span", {}, ` – ${why}`) : null);
}

interface View {
  rules: { name: string; from_level: number; unacknowledged_min: number; addresses: number; unknown_districts: string[] }[];
  notifications: (NotificationLine & { id: number })[];
}

export class Notifications {
  private readonly rules = el("ul", { class: "rules" });
  private readonly lines = el("ul", { class: "deliveries" });
  private readonly problem = el("p", { class: "problem", role: "alert" });
  readonly box = el("details", { class: "notifications" }, el("summary", {}, t("notifications")), this.rules, this.problem, this.lines);

  constructor(private readonly session: Session) {}

  async load(): Promise<void> {
    this.show(await get<View>("api/notifications"));
  }

  private show(view: View): void {
    const late = view.notifications.filter((line) => line.state === "waiting" && line.attempts.length > 0).length;
    replace(this.box.querySelector("summary") as HTMLElement, t("notifications"), late ? el("b", { class: "late" }, t("notificationsLate", { n: late })) : null);
    const unknown = (names: string[]) => (names.length ? el("b", { class: "problem" }, t("unknownDistricts", { names: names.join(currentLanguage() === "ja" ? "、" : ", ") })) : null);
    const rules = view.rules.map((rule) => el("li", {}, el("b", {}, rule.name), ` ${t("eventFromLevel", { n: rule.from_level })} ${rule.unacknowledged_min ? t("notificationAfter", { n: rule.unacknowledged_min }) : ""}`, this.session.role === "chief" ? el("button", { type: "button", "data-test": rule.name, onclick: () => this.test(rule.name) }, t("notificationTest")) : null, unknown(rule.unknown_districts)));
    replace(this.rules, ...(rules.length ? rules : [el("li", {}, t("noRules"))]));
    replace(this.lines, ...view.notifications.map(notificationLine));
  }

  private test(rule: string): void {
    replace(this.problem);
    const send = () =>
      post<View>("api/notifications/test", { rule })
        .then((view) => this.show(view))
        .catch((error: unknown) => (this.problem.textContent = (error as Error).message));
    void disableWhile(this.rules, send);
  }
}

function notificationLine(line: NotificationLine): HTMLElement {
  const last = line.attempts.at(-1);
  const tries = last && last.number > 1 ? t("notificationTries", { n: last.number }) : "";
  const outcome = last?.outcome && last.outcome !== "delivered" ? ` – ${last.outcome}` : "";
  const at = formatTime(last?.at_s ?? line.due_s);
  return el("li", { "data-delivery": line.state }, el("b", {}, `${line.rule} `), `${line.to} `, el("b", {}, t(`notification_${line.state}` as Key)), ` ${at} ${tries}${outcome}`);
}
