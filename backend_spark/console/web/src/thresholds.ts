// Thresholds: present values, effect of a change, and history of versions.
import { table } from "./tables";
import { el, replace } from "./dom";
import { badge } from "./badges";
import { get, post, ApiError, type Session } from "./api";
import { t, formatTime } from "./i18n";

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

interface ThresholdsView {
  default: Limits;
  versions: Version[];
}

interface Effect {
  cells: number;
  before: number[];
  after: number[];
}

export async function drawThresholds(container: HTMLElement, session: Session): Promise<void> {
  show(container, session, await get<ThresholdsView>("api/thresholds"), "");
}

function show(container: HTMLElement, session: Session, view: ThresholdsView, message: string): void {
  const now = view.versions.find((version) => version.cell === "") ?? view.default;
  const number = (name: string, value: number) => el("input", { type: "number", name, value: Math.round(value * 10) / 10, step: 0.5, required: true });
  const fields = {
    cell: el("input", { name: "cell", placeholder: t("allCells") }),
    advisory_mm: number("advisory_mm", now.advisory_mm),
    warning_mm: number("warning_mm", now.warning_mm),
    special_mm: number("special_mm", now.special_mm),
    why: el("input", { name: "why", maxlength: 500, size: 30 }),
  };
  const canEdit = session.role === "chief";
  const problem = el("p", { class: message ? "done" : "problem", role: "alert" }, message);
  const effect = el("div", { class: "effect" });
  const draft = () => ({
    cell: fields.cell.value.trim(),
    advisory_mm: Number(fields.advisory_mm.value),
    warning_mm: Number(fields.warning_mm.value),
    special_mm: Number(fields.special_mm.value),
    why: fields.why.value,
  });
  const showError = (error: unknown) => {
    problem.className = "problem";
    problem.textContent = error instanceof ApiError ? error.message : String(error);
  };
  const preview = el("button", { type: "button", class: "preview", onclick: () => void post<Effect>("api/thresholds/preview", draft()).then((found) => (replace(problem), replace(effect, effectTable(found)))).catch(showError) }, t("preview"));
  const form = el(
    "form",
    { class: "form thresholds" },
    el("label", {}, t("cellOr"), fields.cell),
    el("label", {}, t("advisoryMm"), fields.advisory_mm),
    el("label", {}, t("warningMm"), fields.warning_mm),
    el("label", {}, t("specialMm"), fields.special_mm),
    el("label", {}, t("why"), fields.why),
    preview,
    canEdit ? el("button", { class: "primary", type: "submit" }, t("save")) : null,
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    post<ThresholdsView>("api/thresholds", draft())
      .then((fresh) => show(container, session, fresh, t("saved")))
      .catch(showError);
  });
  replace(container, el("h2", {}, t("thresholds")), canEdit ? null : el("p", { class: "hint" }, t("needsChief")), el("p", { class: "hint" }, t("jobHint")), form, problem, effect, el("h3", {}, t("versions")), versions(view));
}

function effectTable(effect: Effect): HTMLElement {
  const rows = [5, 4, 3, 2, 1].map((level) => el("tr", {}, el("td", {}, badge(level)), el("td", { class: "number" }, String(effect.before[level - 1] ?? 0)), el("td", { class: "number" }, String(effect.after[level - 1] ?? 0))));
  return el("div", {}, el("h3", {}, t("effect")), table("narrow", [t("levelColumn"), t("before"), t("after")], rows).box);
}

function versions(view: ThresholdsView): HTMLElement {
  const names = [t("timeColumn"), t("who"), t("cell"), t("advisoryMm"), t("warningMm"), t("specialMm"), t("why")];
  const line = (cells: string[], first: string) => el("tr", {}, el("td", {}, first), ...cells.map((words) => el("td", {}, words)));
  const mm = (limits: Limits) => [limits.advisory_mm, limits.warning_mm, limits.special_mm].map((n) => n.toFixed(1));
  const rows = view.versions.map((v) => line([v.who, v.cell || t("allCells"), ...mm(v), v.why], formatTime(v.at_s)));
  rows.push(line(["–", t("allCells"), ...mm(view.default), ""], t("defaultVersion")));
  return table("versions", names, rows).box;
}
