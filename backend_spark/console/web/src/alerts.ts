// Alert log: alerts with their reasons and acknowledgements, and hand-over notes.
import { el, replace } from "./dom";
import type { Reason } from "./types";
import { badge } from "./badges";
import { cellLabel } from "./cellNames";
import { get, post, ApiError, type Session } from "./api";
import { currentLanguage, t, formatTime } from "./i18n";

interface Line {
  at_s: number;
  who: string;
  text: string;
}

interface Alert {
  id: number;
  at_s: number;
  what: "level" | "message";
  cell: string | null;
  node?: string;
  level: number;
  step_s: number;
  reasons: Reason[];
  seen: Line[];
}

interface Log {
  alerts: Alert[];
  notes: Line[];
}

export async function drawAlerts(container: HTMLElement, session: Session): Promise<void> {
  show(container, session, await get<Log>("api/log"));
}

function show(container: HTMLElement, session: Session, log: Log): void {
  const canEdit = session.role === "analyst" || session.role === "chief";
  const problem = el("p", { class: "problem", role: "alert" });
  const send = (path: string, text: string) => {
    post<Log>(path, { text })
      .then((fresh) => show(container, session, fresh))
      .catch((error: unknown) => (problem.textContent = error instanceof ApiError ? error.message : String(error)));
  };
  replace(container, el("div", { class: "alerts-page" }, el("section", {}, el("h2", {}, t("alerts")), canEdit ? null : el("p", { class: "hint" }, t("needsAnalyst")), problem, table(log.alerts, canEdit, send)), notes(log.notes, canEdit, send)));
}

type Send = (path: string, text: string) => void;

function table(alerts: Alert[], canEdit: boolean, send: Send): HTMLElement {
  if (!alerts.length) return el("p", {}, t("noAlerts"));
  const head = el("tr", {}, ...[t("timeColumn"), t("levelColumn"), t("what"), t("acknowledgedBy")].map((name) => el("th", { scope: "col" }, name)));
  const rows = alerts.map((alert) => {
    const where = alert.cell ? el("a", { href: `#${alert.cell}`, class: "place" }, cellLabel(alert.cell)) : "–";
    const who = alert.what === "message" ? el("b", {}, `${t("message")}: ${alert.node ?? ""} `) : null;
    const why = el("ul", {}, ...alert.reasons.filter((r) => r.en).map((reason) => el("li", {}, reason[currentLanguage()])));
    return el("tr", { "data-alert": alert.id }, el("td", {}, formatTime(alert.step_s)), el("td", {}, badge(alert.level)), el("td", {}, who, where, why), el("td", {}, ...seen(alert, canEdit, send)));
  });
  return el("table", { class: "list" }, el("thead", {}, head), el("tbody", {}, ...rows));
}

function seen(alert: Alert, canEdit: boolean, send: Send): HTMLElement[] {
  const lines = alert.seen.map((line) => el("div", { class: "seen" }, `✓ ${line.who} ${formatTime(line.at_s)}${line.text && ` – ${line.text}`}`));
  if (alert.seen.length || !canEdit) return lines.length ? lines : [el("span", {}, t("notAcknowledged"))];
  const remark = el("input", { placeholder: t("remark"), "aria-label": t("remark"), maxlength: 2000 });
  const form = el("form", { class: "form" }, remark, el("button", { class: "primary", type: "submit" }, t("acknowledge")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(`api/log/${alert.id}/acknowledge`, remark.value);
  });
  return [form];
}

function notes(lines: Line[], canEdit: boolean, send: Send): HTMLElement {
  const text = el("textarea", { "aria-label": t("note"), maxlength: 2000 });
  const form = el("form", { class: "note" }, text, el("button", { class: "primary", type: "submit" }, t("write")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send("api/log/note", text.value);
  });
  const items = lines.map((line) => el("li", {}, el("small", {}, `${line.who} – ${formatTime(line.at_s)}`), line.text));
  return el("section", {}, el("h2", {}, t("note")), canEdit ? form : null, el("ul", { class: "notes-list" }, ...(items.length ? items : [el("li", {}, t("noNotes"))])));
}
