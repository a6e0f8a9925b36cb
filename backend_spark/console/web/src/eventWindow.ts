// Window of an event: what happened, what was decided, who was notified, and a decision of one's own.
import { el, replace } from "./dom";
import { disableWhile, oneAtATime, RETRY_MS, discardDraft, keepDraft } from "./actions";
import { badge } from "./badges";
import { get, isConflict, post, type Session } from "./api";
import { currentLanguage, formatTime, t, type Key } from "./i18n";
import { placeOf, stateOf, timesOf, STATES, type EventDetail, type EventState, type HistoryLine } from "./eventFields";
import { notificationLine } from "./notifications";

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
