// The alert log: what rose when and why, who has seen it, and notes for the next shift.
import { el, replace } from "./dom";
import type { Reason } from "./facts";
import { badge } from "./marks";
import { place } from "./places";
import { get, post, Refused, type Session } from "./server";
import { chosen, t, when } from "./words";

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

export async function drawAlerts(room: HTMLElement, session: Session): Promise<void> {
  show(room, session, await get<Log>("api/log"));
}

function show(room: HTMLElement, session: Session, log: Log): void {
  const may = session.role === "analyst" || session.role === "chief";
  const problem = el("p", { class: "problem", role: "alert" });
  const send = (path: string, text: string) => {
    post<Log>(path, { text })
      .then((fresh) => show(room, session, fresh))
      .catch((error: unknown) => (problem.textContent = error instanceof Refused ? error.message : String(error)));
  };
  replace(room, el("div", { class: "alerts-page" }, el("section", {}, el("h2", {}, t("alerts")), may ? null : el("p", { class: "hint" }, t("mustLogIn")), problem, table(log.alerts, may, send)), notes(log.notes, may, send)));
}

type Send = (path: string, text: string) => void;

function table(alerts: Alert[], may: boolean, send: Send): HTMLElement {
  if (!alerts.length) return el("p", {}, t("noAlerts"));
  const head = el("tr", {}, ...[t("whenWord"), t("levelWord"), t("what"), t("seen")].map((name) => el("th", { scope: "col" }, name)));
  const rows = alerts.map((alert) => {
    const where = alert.cell ? el("a", { href: `#${alert.cell}`, class: "place" }, place(alert.cell)) : "–";
    const who = alert.what === "message" ? el("b", {}, `${t("message")}: ${alert.node ?? ""} `) : null;
    const why = el("ul", {}, ...alert.reasons.filter((r) => r.en).map((reason) => el("li", {}, reason[chosen()])));
    return el("tr", { "data-alert": alert.id }, el("td", {}, when(alert.step_s)), el("td", {}, badge(alert.level)), el("td", {}, who, where, why), el("td", {}, ...seen(alert, may, send)));
  });
  return el("table", { class: "list" }, el("thead", {}, head), el("tbody", {}, ...rows));
}

function seen(alert: Alert, may: boolean, send: Send): HTMLElement[] {
  const lines = alert.seen.map((line) => el("div", { class: "seen" }, `✓ ${line.who} ${when(line.at_s)}${line.text && ` – ${line.text}`}`));
  if (alert.seen.length || !may) return lines.length ? lines : [el("span", {}, t("nobody"))];
  const remark = el("input", { placeholder: t("remark"), "aria-label": t("remark"), maxlength: 2000 });
  const form = el("form", { class: "form" }, remark, el("button", { class: "primary", type: "submit" }, t("acknowledge")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(`api/log/${alert.id}/acknowledge`, remark.value);
  });
  return [form];
}

function notes(lines: Line[], may: boolean, send: Send): HTMLElement {
  const text = el("textarea", { "aria-label": t("note"), maxlength: 2000 });
  const form = el("form", { class: "note" }, text, el("button", { class: "primary", type: "submit" }, t("write")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send("api/log/note", text.value);
  });
  const items = lines.map((line) => el("li", {}, el("small", {}, `${line.who} – ${when(line.at_s)}`), line.text));
  return el("section", {}, el("h2", {}, t("note")), may ? form : null, el("ul", { class: "notes-list" }, ...(items.length ? items : [el("li", {}, t("noNotes"))])));
}
