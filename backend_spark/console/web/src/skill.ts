// Skill of a season: levels compared with landslides by days, hours and lead times.
import { table, el, replace, type Child } from "./dom";
import { disableWhile, get, post, type Session } from "./api";
import { badge } from "./badges";
import { t, formatTime } from "./i18n";

interface Slide {
  from_s: number;
  to_s: number;
  count: number;
  text?: string;
  who?: string;
}

type Score = Record<"pod" | "far" | "pofd" | "tss" | "csi" | "hss", number | null> & { level: number; hits: number; false_alarms: number; misses: number; quiet: number };

interface Skill {
  days: number;
  events: Slide[];
  missing_h: number;
  scores: Score[];
  classes: string[];
  hours: number[][];
  leads: ({ least_s: number; most_s: number } | null)[][];
}

export async function drawSkill(container: HTMLElement, session: Session): Promise<void> {
  show(container, session, await get<Slide[]>("api/landslides"));
}

function show(container: HTMLElement, session: Session, events: Slide[]): void {
  const today = new Date().toLocaleDateString("sv", { timeZone: "Asia/Tokyo" });
  const first = el("input", { type: "date", name: "first", value: `${today.slice(0, 4)}-01-01`, required: true });
  const last = el("input", { type: "date", name: "last", value: today, required: true });
  const result = el("div", { class: "result" });
  const problem = el("p", { class: "problem", role: "alert" });
  const showError = (error: unknown) => (problem.textContent = (error as Error).message);
  const form = el("form", { class: "form season" }, el("label", {}, t("firstDay"), first), el("label", {}, t("lastDay"), last), el("button", { class: "primary", type: "submit" }, t("compute")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    replace(problem);
    const find = () =>
      get<Skill>(`api/skill?first=${first.value}&last=${last.value}`)
        .then((found) => replace(result, ...tables(found)))
        .catch(showError);
    void disableWhile(form, find);
  });
  const canEdit = session.role === "analyst" || session.role === "chief";
  replace(container, el("h2", {}, t("skill")), form, problem, result, el("h3", {}, t("slides")), canEdit ? eventForm(container, session, showError) : el("p", { class: "hint" }, t("needsAnalyst")), eventTable(events));
}

function eventForm(container: HTMLElement, session: Session, showError: (error: unknown) => void): HTMLElement {
  const time = el("input", { type: "datetime-local", name: "time", required: true });
  const count = el("input", { type: "number", name: "count", min: 1, value: 1, required: true });
  const text = el("input", { name: "text", maxlength: 500 });
  const form = el("form", { class: "form event" }, el("label", {}, t("timeColumn"), time), el("label", {}, t("count"), count), el("label", {}, t("what"), text), el("button", { type: "submit" }, t("write")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const send = () =>
      post<Slide[]>("api/landslides", { time: time.value, count: Number(count.value), text: text.value })
        .then((events) => show(container, session, events))
        .catch(showError);
    void disableWhile(form, send);
  });
  return form;
}

function numberTable(name: string, head: string[], rows: Child[][]): HTMLElement {
  const line = (cells: Child[]) => el("tr", {}, ...cells.map((cell, at) => el("td", { class: at ? "number" : "" }, cell)));
  return table(name, head, rows.map(line)).box;
}

function tables(found: Skill): HTMLElement[] {
  const number = (value: number | null) => (value === null ? "–" : value.toFixed(2));
  const scores = found.scores.map((s) => [badge(s.level), String(s.hits), String(s.false_alarms), String(s.misses), String(s.quiet), ...[s.pod, s.far, s.tss, s.csi].map(number)]);
  const hours = found.hours.map((row, at) => [badge(at + 1), ...row.map((h) => h.toFixed(1))]);
  const leads = found.leads.map((row, at) => [formatTime(found.events[at]?.from_s ?? 0), String(found.events[at]?.count ?? ""), ...row.map((lead) => (lead ? hoursText(lead.least_s, lead.most_s) : "–"))]);
  const levels = found.scores.map((s) => t("level", { n: s.level }));
  return [
    el("p", {}, t("seasonSummary", { days: found.days, events: found.events.length, missing: found.missing_h.toFixed(0) })),
    found.events.length < 20 ? el("p", { class: "hint" }, t("fewEvents")) : null,
    el("h3", {}, t("byDays")),
    numberTable("scores", [t("state"), "TP", "FP", "FN", "TN", "POD", "FAR", "TSS", "CSI"], scores),
    el("h3", {}, t("byHours")),
    numberTable("hours", [t("state"), ...found.classes.map((name) => t(`class_${name}` as "class_none"))], hours),
    leads.length ? el("h3", {}, t("leadTimes")) : null,
    leads.length ? numberTable("leads", [t("slides"), t("count"), ...levels], leads) : null,
  ].filter((part): part is HTMLElement => part !== null);
}

function hoursText(minS: number, maxS: number): string {
  const [low, high] = [minS / 3600, maxS / 3600].map((h) => h.toFixed(1));
  return low === high ? `${low} h` : `${low}–${high} h`;
}

function eventTable(events: Slide[]): HTMLElement {
  const rows = events.map((event) => [formatTime(event.from_s), String(event.count), event.text ?? "", event.who ?? ""]);
  return numberTable("events", [t("timeColumn"), t("count"), t("what"), t("who")], rows);
}
