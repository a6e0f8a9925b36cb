// Thresholds: those in force, the effect of a change, and the versions with their state.
import { el, replace, table } from "./dom";
import { disableWhile, get, post, preview, encode, type Session } from "./api";
import { cellLabel, cellName } from "./names";
import { t, formatTime, type Key, formatPeriod } from "./i18n";
import { badge, jobState, type Job } from "./badges";
import { snakeChart, type Lines } from "./snakeChart";

interface Storm {
  begin_s: number;
  end_s: number;
  total_mm: number;
  highest_r60_mm: number | null;
  highest_swi_mm: number | null;
  before: number;
  after: number;
  before_s: number | null;
  after_s: number | null;
}

export interface Effect {
  cells: number;
  before: number[];
  after: number[];
  example: string;
  lines: Lines;
  changed: Lines;
  swi_mm: (number | null)[];
  r60_mm: (number | null)[];
  past: { from_s: number | null; rises: { level: number; before: number; after: number }[]; storms: Storm[]; others: number };
}

export function drawEffect(effect: Effect): HTMLElement[] {
  const { past } = effect;
  const counts = [5, 4, 3, 2, 1].map((level) => numbers(badge(level), effect.before[level - 1] ?? 0, effect.after[level - 1] ?? 0));
  const names = [t("before"), t("after")];
  const example = effect.cells > 1 ? [el("p", { class: "hint" }, t("example", { cell: cellName(effect.example) || effect.example }))] : [];
  const isMany = effect.cells > 1;
  const chart = snakeChart({ lines: effect.lines, changed: effect.changed, futures: [], swi_mm: effect.swi_mm, r60_mm: effect.r60_mm, until: effect.swi_mm.length - 1, isPast: false });
  const risen = past.from_s === null ? [el("h3", {}, t("noPast"))] : [el("h3", {}, t("rises", { from: formatTime(past.from_s) })), rises(past.rises), el("p", { class: "hint" }, t("risesHint"))];
  return [
    ...(isMany ? [el("h3", {}, t("effect")), table("narrow counts-72h", [t("levelColumn"), ...names], counts).box] : []),
    ...example,
    el("div", { class: "effect-top" }, chart, el("div", {}, ...risen)),
    ...(past.storms.length ? [el("h3", {}, t("storms")), storms(past)] : []),
  ];
}

function numbers(first: Node, before: number, after: number): HTMLTableRowElement {
  const change = before === after ? "" : before < after ? "more" : "fewer";
  return el("tr", { class: change }, el("td", {}, first), el("td", { class: "number" }, String(before)), el("td", { class: "number" }, String(after)));
}

function rises(found: Effect["past"]["rises"]): HTMLElement {
  const rows = found.map((each) => numbers(badge(each.level), each.before, each.after));
  return table("narrow rises", [t("timesRisen"), t("before"), t("after")], rows).box;
}

function storms(past: Effect["past"]): HTMLElement {
  const mm = (value: number | null) => (value === null ? "–" : `${value.toFixed(0)} mm`);
  const reached = (level: number, at: number | null) => el("td", {}, badge(level), el("small", {}, at === null ? `${t("stormWarning")}: ${t("never")}` : `${t("stormWarning")}: ${formatTime(at)}`));
  const rows = past.storms.map((storm) =>
    el("tr", { class: storm.before === storm.after ? "" : storm.before < storm.after ? "more" : "fewer" }, el("td", {}, formatPeriod(storm.begin_s, storm.end_s)), el("td", {}, mm(storm.total_mm), el("small", {}, `${mm(storm.highest_r60_mm)}/h, ${mm(storm.highest_swi_mm)}`)), reached(storm.before, storm.before_s), reached(storm.after, storm.after_s)),
  );
  const box = table("storms", [t("stormPeriod"), t("stormRain"), t("before"), t("after")], rows).box;
  return el("div", {}, box, past.others ? el("p", { class: "hint" }, t("otherStorms", { n: past.others })) : null);
}

interface Limits {
  advisory_mm: number | null;
  warning_mm: number | null;
  special_mm: number | null;
}

interface Values extends Limits {
  line_percent?: number;
  tilt_3_deg_per_h?: number | null;
  tilt_4_deg_per_h?: number | null;
}

interface Version extends Values {
  id: number;
  at_s: number;
  who: string;
  cell: string;
  why: string;
  withdrawn?: boolean;
  state: "replaced" | "waiting" | "applied" | "not_read";
  n_cells: number;
  n_applied: number;
  applied_s: number | null;
}

interface View {
  cells: string[];
  cell: string;
  default: Limits;
  current: Values & { has_own_tilt: boolean };
  job: Job;
  versions: Version[];
}

const POLL_MS = 10_000;
const NUMBERS = ["advisory_mm", "warning_mm", "special_mm", "line_percent", "tilt_3_deg_per_h", "tilt_4_deg_per_h"] as const;
const LABELS: Record<(typeof NUMBERS)[number], Key> = { advisory_mm: "advisoryMm", warning_mm: "warningMm", special_mm: "specialMm", line_percent: "linePercent", tilt_3_deg_per_h: "tilt3", tilt_4_deg_per_h: "tilt4" };

export async function drawThresholds(container: HTMLElement, session: Session, cell: string | null): Promise<void> {
  const view = await get<View>(`api/thresholds?cell=${encode(cell ?? "")}`);
  new ThresholdsPage(container, session, view).begin();
}

class ThresholdsPage {
  private readonly canEdit: boolean;
  private readonly problem = el("p", { class: "problem", role: "alert" });
  private readonly effect = el("div", { class: "effect", "aria-live": "polite" });
  private readonly job = el("div", {});
  private readonly list = el("div", {});
  private form: ThresholdForm;
  private asked = 0;
  // A list that did not change is not drawn anew: a click must not miss its button.
  private drawn: View | null = null;

  constructor(
    private readonly container: HTMLElement,
    session: Session,
    private view: View,
  ) {
    this.canEdit = session.role === "chief";
    this.form = this.newForm();
  }

  draw(message: string): void {
    this.say(message, "done");
    replace(this.effect);
    const hint = this.canEdit ? null : el("p", { class: "hint" }, t("needsChief"));
    replace(this.container, el("h2", {}, t("thresholds")), this.job, hint, this.form.box, this.problem, this.effect, el("h3", {}, t("versions")), this.list);
    this.drawStates();
  }

  begin(): void {
    this.draw("");
    window.setTimeout(() => void this.poll(), POLL_MS);
  }

  private newForm(): ThresholdForm {
    return new ThresholdForm(this.view, this.canEdit, (draft) => void this.preview(draft), (draft) => void disableWhile(this.form.box, () => this.save(draft)));
  }

  // The state of versions changes when the job has scored; the form stays as it is.
  private async poll(): Promise<void> {
    if (!this.form.box.isConnected) return;
    const { view } = this;
    const found = await get<View>(`api/thresholds?cell=${encode(view.cell)}`).catch(() => view);
    // What was saved meanwhile has its own answer.
    if (view === this.view && JSON.stringify(found) !== JSON.stringify(view)) this.view = found;
    if (this.view !== this.drawn) this.drawStates();
    window.setTimeout(() => void this.poll(), POLL_MS);
  }

  private drawStates(): void {
    this.drawn = this.view;
    replace(this.job, jobState(this.view.job, "changes"));
    const revert = this.canEdit ? (version: Version | null) => this.form.revert(version) : null;
    replace(this.list, versions(this.view, revert));
  }

  private say(words: string, style: "done" | "problem"): void {
    this.problem.className = style;
    this.problem.textContent = words;
  }

  private async preview(draft: unknown): Promise<void> {
    const asked = ++this.asked;
    this.say("", "done");
    replace(this.effect, el("p", { class: "hint" }, t("previewing")));
    try {
      const effect = await preview<Effect>("api/thresholds/preview", draft);
      // Other values were previewed or saved meanwhile.
      if (asked === this.asked) replace(this.effect, ...drawEffect(effect));
    } catch (error) {
      if (asked !== this.asked) return;
      replace(this.effect);
      this.fail(error);
    }
  }

  private async save(draft: unknown): Promise<void> {
    try {
      this.view = await post<View>("api/thresholds", draft);
      this.asked++;
      this.form = this.newForm();
      this.draw(t("saved"));
    } catch (error) {
      this.fail(error);
    }
  }

  private fail(error: unknown): void {
    this.say((error as Error).message, "problem");
  }
}

class ThresholdForm {
  readonly box: HTMLFormElement;
  private readonly fields: Record<(typeof NUMBERS)[number], HTMLInputElement>;
  private readonly cell: HTMLInputElement;
  private readonly why = el("input", { name: "why", maxlength: 500, size: 40, required: true });
  private readonly one: HTMLInputElement;
  private readonly all: HTMLInputElement;
  private readonly sure = el("input", { type: "checkbox", name: "sure" });
  private readonly confirmation: HTMLElement;
  private readonly note = el("p", { class: "revert-note", hidden: true });
  private readonly saveButton: HTMLButtonElement | null;
  private withdrawn = false;

  constructor(
    private readonly view: View,
    canEdit: boolean,
    onPreview: (draft: unknown) => void,
    onSave: (draft: unknown) => void,
  ) {
    const n = view.cells.length;
    this.one = el("input", { type: "radio", name: "scope", value: "cell", checked: true, onchange: () => this.onScope() });
    this.all = el("input", { type: "radio", name: "scope", value: "all", onchange: () => this.onScope() });
    this.cell = el("input", { name: "cell", list: "threshold-cells", value: view.cell, size: 14, "aria-label": t("cellToken"), required: true });
    const field = (name: (typeof NUMBERS)[number]) => {
      const value = view.current[name];
      const isOwn = !name.startsWith("tilt") || view.current.has_own_tilt;
      const shown = typeof value === "number" ? String(Math.round(value * 1000) / 1000) : "";
      return el("input", { type: "number", name, step: "any", value: isOwn ? shown : undefined, placeholder: shown, required: !name.startsWith("tilt") });
    };
    this.fields = Object.fromEntries(NUMBERS.map((name) => [name, field(name)])) as typeof this.fields;
    this.confirmation = el("label", { class: "confirm", hidden: true }, this.sure, el("span", {}, t("confirmAll", { n })));
    this.saveButton = canEdit ? el("button", { class: "primary", type: "submit" }, t("save")) : null;
    const known = el("span", { class: "hint" }, view.cell ? cellName(view.cell) : "");
    const cells = el("datalist", { id: "threshold-cells" }, ...view.cells.map((token) => el("option", { value: token }, cellName(token))));
    this.box = el(
      "form",
      { class: "form thresholds" },
      el("fieldset", { class: "scope" }, el("legend", {}, t("scope")), el("label", {}, this.one, el("span", {}, t("oneCell"))), this.cell, cells, known, el("label", {}, this.all, el("span", {}, t("allOfThem", { n })))),
      ...NUMBERS.map((name) => el("label", { class: "value" }, t(LABELS[name]), this.fields[name])),
      this.note,
      el("label", { class: "wide" }, t("why"), this.why),
      this.confirmation,
      el("div", { class: "buttons" }, el("button", { type: "button", class: "preview", onclick: () => this.hasValues() && onPreview(this.draft()) }, t("preview")), this.saveButton),
    );
    this.box.addEventListener("submit", (event) => {
      event.preventDefault();
      onSave(this.draft());
    });
  }

  // Fill the form with an earlier version, or with the end of the set values.
  revert(version: Version | null): void {
    this.withdrawn = version === null || version.withdrawn === true;
    if (version) {
      (version.cell ? this.one : this.all).checked = true;
      this.cell.value = version.cell;
    }
    for (const name of NUMBERS) {
      const value = version?.[name];
      if (!this.withdrawn) this.fields[name].value = value === null || value === undefined ? (name === "line_percent" ? "100" : "") : String(value);
      this.fields[name].disabled = this.withdrawn;
    }
    this.note.hidden = false;
    this.note.textContent = version && !this.withdrawn ? t("reverting", { t: formatTime(version.at_s) }) : t("withdrawing");
    this.onScope();
    this.box.scrollIntoView({ block: "center" });
    this.why.focus();
  }

  // A preview needs neither a reason nor the confirmation.
  private hasValues(): boolean {
    return [this.cell, ...NUMBERS.map((name) => this.fields[name])].every((field) => field.reportValidity());
  }

  private onScope(): void {
    const isAll = this.all.checked;
    this.cell.disabled = isAll;
    this.confirmation.hidden = !isAll;
    this.sure.required = isAll;
    this.sure.checked = false;
    if (this.saveButton) this.saveButton.textContent = t(isAll ? "saveAll" : "save");
  }

  private draft(): unknown {
    const number = (name: (typeof NUMBERS)[number]) => (this.fields[name].value === "" ? null : Number(this.fields[name].value));
    const values = this.withdrawn ? { withdrawn: true } : Object.fromEntries(NUMBERS.map((name) => [name, number(name)]));
    const isAll = this.all.checked;
    return { cell: isAll ? "" : this.cell.value.trim(), all_cells: isAll, confirmed_cells: isAll && this.sure.checked ? this.view.cells.length : 0, version: { ...values, why: this.why.value.trim() } };
  }
}

function versions(view: View, revert: ((version: Version | null) => void) | null): HTMLElement {
  const names = [t("timeColumn"), t("who"), t("cell"), t("versionValues"), t("why"), t("versionState"), t("actions")];
  const button = (version: Version | null) => (revert ? el("button", { type: "button", class: "revert", onclick: () => revert(version) }, t(version ? "revert" : "versionWithdrawn")) : "");
  const line = (...cells: (Node | string)[]) => el("tr", {}, ...cells.map((each) => el("td", {}, each)));
  const rows = view.versions.map((v) => line(formatTime(v.at_s), v.who, v.cell ? cellLabel(v.cell) : t("allCells"), v.withdrawn ? t("versionWithdrawn") : values(v), v.why, stateOf(v), v.withdrawn ? "" : button(v)));
  rows.push(line(t("defaultVersion"), "–", t("allCells"), values(view.default), "", "", button(null)));
  return table("versions", names, rows).box;
}

function values(v: Values): HTMLElement {
  const mm = [v.advisory_mm, v.warning_mm, v.special_mm].map((n) => (n === null ? "–" : n.toFixed(1))).join(" / ");
  const more = [v.line_percent !== undefined && v.line_percent !== 100 && `CL ${v.line_percent} %`, v.tilt_3_deg_per_h && `${t("tilt")} ${v.tilt_3_deg_per_h} / ${v.tilt_4_deg_per_h} °/h`];
  return el("span", {}, `${mm} mm`, ...more.map((words) => (words ? el("small", {}, words) : null)));
}

function stateOf(v: Version): HTMLElement {
  const words = {
    replaced: t("versionReplaced"),
    not_read: t("versionNotRead"),
    waiting: t("versionWaiting", { n: v.n_applied, all: v.n_cells }),
    applied: v.applied_s ? t("versionAppliedAt", { t: formatTime(v.applied_s) }) : t("versionApplied"),
  }[v.state];
  return el("span", { class: `version-state ${v.state}` }, words);
}
