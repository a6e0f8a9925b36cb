// Thresholds: what they are, what a change would do, and who changed what and why.
import { el, replace } from "./dom";
import { badge } from "./marks";
import { get, post, Refused, type Session } from "./server";
import { t, when } from "./words";

interface Limits {
  advisory_mm: number;
  warning_mm: number;
  special_mm: number;
}

interface Version extends Limits {
  at_s: number;
  who: string;
  cell: string;
  why: string;
}

interface Told {
  default: Limits;
  versions: Version[];
}

interface Effect {
  cells: number;
  before: number[];
  after: number[];
}

export async function drawThresholds(room: HTMLElement, session: Session): Promise<void> {
  show(room, session, await get<Told>("api/thresholds"), "");
}

function show(room: HTMLElement, session: Session, told: Told, said: string): void {
  const now = told.versions.find((version) => version.cell === "") ?? told.default;
  const number = (name: string, value: number) => el("input", { type: "number", name, value: Math.round(value * 10) / 10, step: 0.5, required: true });
  const fields = {
    cell: el("input", { name: "cell", placeholder: t("allCells") }),
    advisory_mm: number("advisory_mm", now.advisory_mm),
    warning_mm: number("warning_mm", now.warning_mm),
    special_mm: number("special_mm", now.special_mm),
    why: el("input", { name: "why", maxlength: 500, size: 30 }),
  };
  const may = session.role === "chief";
  const problem = el("p", { class: said ? "done" : "problem", role: "alert" }, said);
  const effect = el("div", { class: "effect" });
  const draft = () => ({
    cell: fields.cell.value.trim(),
    advisory_mm: Number(fields.advisory_mm.value),
    warning_mm: Number(fields.warning_mm.value),
    special_mm: Number(fields.special_mm.value),
    why: fields.why.value,
  });
  const tell = (error: unknown) => {
    problem.className = "problem";
    problem.textContent = error instanceof Refused ? error.message : String(error);
  };
  const preview = el("button", { type: "button", class: "preview", onclick: () => void post<Effect>("api/thresholds/preview", draft()).then((found) => (replace(problem), replace(effect, effectTable(found)))).catch(tell) }, t("preview"));
  const form = el(
    "form",
    { class: "form thresholds" },
    el("label", {}, t("cellOr"), fields.cell),
    el("label", {}, t("advisoryMm"), fields.advisory_mm),
    el("label", {}, t("warningMm"), fields.warning_mm),
    el("label", {}, t("specialMm"), fields.special_mm),
    el("label", {}, t("why"), fields.why),
    preview,
    may ? el("button", { class: "primary", type: "submit" }, t("save")) : null,
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    post<Told>("api/thresholds", draft())
      .then((fresh) => show(room, session, fresh, t("saved")))
      .catch(tell);
  });
  replace(room, el("h2", {}, t("thresholds")), may ? null : el("p", { class: "hint" }, t("mustBeChief")), el("p", { class: "hint" }, t("jobHint")), form, problem, effect, el("h3", {}, t("versions")), versions(told));
}

function effectTable(effect: Effect): HTMLElement {
  const head = el("tr", {}, ...["", t("before"), t("after")].map((name) => el("th", { scope: "col" }, name)));
  const rows = [5, 4, 3, 2, 1].map((level) => el("tr", {}, el("td", {}, badge(level)), el("td", { class: "number" }, String(effect.before[level - 1] ?? 0)), el("td", { class: "number" }, String(effect.after[level - 1] ?? 0))));
  return el("div", {}, el("h3", {}, t("effect")), el("table", { class: "list narrow" }, el("thead", {}, head), el("tbody", {}, ...rows)));
}

function versions(told: Told): HTMLElement {
  const names = [t("whenWord"), t("who"), t("cell"), t("advisoryMm"), t("warningMm"), t("specialMm"), t("why")];
  const line = (cells: string[], first: string) => el("tr", {}, el("td", {}, first), ...cells.map((words) => el("td", {}, words)));
  const mm = (limits: Limits) => [limits.advisory_mm, limits.warning_mm, limits.special_mm].map((n) => n.toFixed(1));
  const rows = told.versions.map((v) => line([v.who, v.cell || t("allCells"), ...mm(v), v.why], when(v.at_s)));
  rows.push(line(["–", t("allCells"), ...mm(told.default), ""], t("defaultVersion")));
  return el("table", { class: "list versions" }, el("thead", {}, el("tr", {}, ...names.map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, ...rows));
}
