// Review of readings: doubtful spans to judge, the decisions with their state, and the window of a decision with its effect.
import { el, replace, table } from "./dom";
import { badge, flagBadge, jobState, type Job } from "./badges";
import { get, type Session, encode, isConflict, post, preview, ApiError, type NodeState, type Reason, discardDraft, keepDraft } from "./api";
import { cellLabel, fetchNodes, sensorName, unitName } from "./names";
import { openSeries } from "./series";
import { currentLanguage, formatPeriod, formatTime, t, fromDateField, toDateField } from "./i18n";

const POLL_MS = 10_000;
const HOURS = [24, 72, 168];

export async function drawReviews(container: HTMLElement, session: Session): Promise<void> {
  await fetchNodes();
  await new ReviewsPage(container, session).draw();
}

class ReviewsPage {
  private readonly canEdit: boolean;
  private readonly problem = el("p", { class: "problem", role: "alert" });
  private readonly done = el("p", { class: "done", role: "status" });
  private readonly job = el("div", {});
  private readonly ranges = el("div", { class: "chips", role: "group", "aria-label": t("range") });
  private readonly queue = el("div", {});
  private readonly list = el("div", {});
  private hours = 72;
  private nowS = 0;
  // Its range of time ends at the present, which the first answer brings.
  private readonly markButton = el("button", { type: "button", class: "mark-bad", disabled: true, onclick: () => this.mark(null) }, t("markBad"));
  // A list that did not change is not drawn anew: a click must not miss its button.
  private drawn = "";
  private asked = 0;

  constructor(
    private readonly container: HTMLElement,
    private readonly session: Session,
  ) {
    this.canEdit = session.role === "chief";
  }

  async draw(): Promise<void> {
    const hint = this.canEdit ? null : el("p", { class: "hint" }, t("reviewNeedsChief"));
    replace(this.container, el("div", { class: "reviews-page" }, el("h2", {}, t("reviewTitle")), this.job, hint, this.problem, this.done, this.ranges, this.queue, this.canEdit ? this.markButton : null, el("h3", {}, t("decisions")), this.list));
    await this.load();
    window.setTimeout(() => void this.poll(), POLL_MS);
  }

  private async poll(): Promise<void> {
    if (!this.list.isConnected) return;
    await this.load();
    window.setTimeout(() => void this.poll(), POLL_MS);
  }

  private async load(): Promise<void> {
    const asked = ++this.asked;
    try {
      const view = await get<View>(`api/reviews?hours=${this.hours}`);
      // A later choice has its own answer, as has a decision.
      if (asked !== this.asked) return;
      this.show(view);
      this.problem.textContent = "";
    } catch (error) {
      if (asked === this.asked) this.problem.textContent = (error as Error).message;
    }
  }

  private show(view: View): void {
    this.nowS = view.now_s;
    this.markButton.disabled = false;
    const text = JSON.stringify([{ ...view, now_s: 0 }, this.hours]);
    if (text === this.drawn) return;
    this.drawn = text;
    replace(this.job, jobState(view.job, "reviews"));
    replace(this.ranges, ...HOURS.map((each) => el("button", { type: "button", "data-hours": each, "aria-pressed": String(each === this.hours), onclick: () => ((this.hours = each), void this.load()) }, each < 48 ? t("rangeHours", { n: each }) : t("rangeDays", { n: each / 24 }))));
    const more = view.is_cut || view.n_spans > view.spans.length ? el("p", { class: "hint" }, t("reviewMore", { n: view.spans.length })) : null;
    replace(this.queue, view.spans.length ? this.spans(view.spans) : el("p", {}, t("nothingToReview")), more);
    replace(this.list, view.decisions.length ? this.decisions(view.decisions) : el("p", {}, t("noDecisions")));
  }

  private spans(spans: Span[]): HTMLElement {
    const columns = [t("levelColumn"), t("readingColumn"), t("timeColumn"), t("valueColumn"), t("doubtColumn"), t("actions")];
    const rows = spans.map((span) =>
      el(
        "tr",
        { "data-span": `${span.node} ${span.name}` },
        el("td", {}, badge(span.level)),
        el("td", {}, el("b", {}, span.node), ` ${sensorName(span.name, span.unit)}`, el("small", {}, cellLabel(span.cell))),
        el("td", {}, formatPeriod(span.from_s, span.to_s), el("small", {}, t("readingCount", { n: span.count }))),
        el("td", {}, values(span)),
        el("td", {}, flagBadge(span.flag), " ", span.reasons.map((reason) => reason[currentLanguage()]).join(t("separator"))),
        el("td", { class: "review-buttons" }, ...this.buttons(span)),
      ),
    );
    return table("spans", columns, rows).box;
  }

  private buttons(span: Span): HTMLElement[] {
    const series = el("button", { type: "button", class: "open-series", onclick: () => openSeries([span.node]) }, t("seriesOfNode"));
    if (!this.canEdit) return [series];
    const open = (verdict: Draft["verdict"]) => this.open({ kind: "decide", draft: { node: span.node, name: span.name, from_s: span.from_s, to_s: span.to_s, verdict, codes: span.codes, why: "" }, unit: span.unit });
    return [el("button", { type: "button", class: "accept", onclick: () => open("accepted") }, t("acceptDoubt")), el("button", { type: "button", class: "reject", onclick: () => open("good") }, t("rejectDoubt")), el("button", { type: "button", class: "bad", onclick: () => this.mark(span) }, t("markBadShort")), series];
  }

  private mark(span: Span | null): void {
    const now = Math.floor(this.nowS);
    const draft: Draft = { node: span?.node ?? "", name: span?.name ?? "", from_s: span?.from_s ?? now - 3600, to_s: span?.to_s ?? now, verdict: "bad", codes: [], why: "" };
    this.open({ kind: "decide", draft, unit: span?.unit ?? null, isFree: span === null });
  }

  private open(request: Request): void {
    this.done.textContent = "";
    openReview(request, this.session, (view) => {
      this.asked++;
      this.show(view);
      // The answer has the usual range.
      if (view.hours !== this.hours) void this.load();
      this.done.textContent = t("saved");
    });
  }

  private decisions(decisions: Decision[]): HTMLElement {
    const columns = [t("timeColumn"), t("who"), t("readingColumn"), t("decision"), t("reasonColumn"), t("versionState"), t("actions")];
    const line = (...cells: (Node | string | null)[]) => el("tr", {}, ...cells.map((each) => el("td", {}, each)));
    const rows = decisions.map((d) => {
      const revert = this.canEdit && !d.end ? el("button", { type: "button", class: "revert", onclick: () => this.open({ kind: "revert", review: d.id, draft: d, unit: null }) }, t("revertDecision")) : "";
      const what = el("span", {}, t(`verdict_${d.verdict}`), d.raised_to ? el("small", {}, t("raisedTo", { n: d.raised_to })) : null);
      const why = el("span", {}, d.why || "–", d.end ? el("small", {}, `${t("revertedBy", { who: d.end.who, t: formatTime(d.end.at_s) })} ${d.end.why}`) : null);
      const where = el("span", {}, el("b", {}, d.node), ` ${sensorName(d.name)}`, el("small", {}, formatPeriod(d.from_s, d.to_s), " ", t("readingCount", { n: d.count })));
      return line(formatTime(d.at_s), d.who, where, what, why, stateOf(d), revert);
    });
    return table("decisions", columns, rows).box;
  }
}

function values(span: Span): string {
  if (span.low === null) return "–";
  return `${span.low === span.high ? span.low : `${span.low} – ${span.high}`} ${unitName(span.unit, span.name)}`;
}

function stateOf(d: Decision): HTMLElement {
  const words = {
    recorded: t("reviewRecorded"),
    not_read: t("versionNotRead"),
    waiting: t("reviewWaiting"),
    applied: t("versionAppliedAt", { t: formatTime(d.applied_s ?? 0) }),
    ending: t("reviewEnding"),
    reverted: t("reviewReverted"),
  }[d.state];
  return el("span", { class: `version-state ${d.state}` }, words);
}

export interface Draft {
  node: string;
  name: string;
  from_s: number;
  to_s: number;
  verdict: "accepted" | "good" | "bad";
  codes: string[];
  why: string;
}

interface Span {
  cell: string;
  node: string;
  name: string;
  unit: string | null;
  flag: number;
  codes: string[];
  reasons: Reason[];
  from_s: number;
  to_s: number;
  count: number;
  low: number | null;
  high: number | null;
  level: number;
}

export interface Decision extends Draft {
  id: number;
  at_s: number;
  who: string;
  cell: string;
  count: number;
  raised_to: number | null;
  end: { at_s: number; who: string; why: string } | null;
  state: "recorded" | "not_read" | "waiting" | "applied" | "ending" | "reverted";
  applied_s: number | null;
}

export interface View {
  now_s: number;
  hours: number;
  spans: Span[];
  n_spans: number;
  is_cut: boolean;
  job: Job;
  decisions: Decision[];
}

type Request = { draft: Draft; unit: string | null } & ({ kind: "decide"; isFree?: boolean } | { kind: "revert"; review: number });

interface Shown {
  at_s: number;
  level: number | null;
  state: string;
  notice_level: number | null;
}

interface Effect {
  cell: string;
  count: number;
  before: Shown | null;
  after: Shown | null;
  changes: { begin_s: number; end_s: number; before: number | null; after: number | null }[];
  steps: number;
  raised_to: number | null;
  is_raised_now: boolean;
}

function openReview(request: Request, session: Session, onSaved: (view: View) => void): void {
  const window_ = new ReviewWindow(request, session, onSaved);
  document.body.append(window_.box);
  window_.box.showModal();
  window_.begin();
}

// Another preview is computed, such as that of an earlier choice.
const BUSY = 503;
const BUSY_WAIT_MS = 2000;

class ReviewWindow {
  readonly box: HTMLDialogElement;
  private readonly form: HTMLFormElement;
  private readonly why: HTMLTextAreaElement;
  private readonly effect = el("div", { class: "effect", "aria-live": "polite" });
  private readonly problem = el("p", { class: "problem", role: "alert" });
  private readonly sure = el("input", { type: "checkbox", name: "sure" });
  private readonly consent = el("label", { class: "confirm", hidden: true }, this.sure, el("span", {}));
  private readonly save = el("button", { class: "primary", type: "submit", disabled: true });
  private readonly scope: ScopeFields | null;
  private raisedTo: number | null = null;
  private asked = 0;

  constructor(
    private readonly request: Request,
    session: Session,
    private readonly onSaved: (view: View) => void,
  ) {
    const { draft, unit } = request;
    const isRevert = request.kind === "revert";
    const needsWhy = isRevert || draft.verdict !== "accepted";
    const title = isRevert ? t("revertDecision") : { accepted: t("acceptDoubt"), good: t("rejectDoubt"), bad: t("markBad") }[draft.verdict];
    const hint = isRevert ? t("revertHint") : { accepted: t("acceptHint"), good: t("rejectHint"), bad: t("badHint") }[draft.verdict];
    this.why = el("textarea", { name: "why", maxlength: 500, required: needsWhy, "aria-label": t(needsWhy ? "reasonNeeded" : "reasonOptional"), placeholder: t(needsWhy ? "reasonNeeded" : "reasonOptional") });
    // The reason stays when the session ends, which does not close the window.
    const name = `review ${isRevert ? request.review : draft.verdict} ${draft.node} ${draft.name}`;
    keepDraft(this.why, session, name);
    this.scope = request.kind === "decide" && request.isFree ? new ScopeFields(draft, () => void this.preview(), () => this.clear()) : null;
    this.save.textContent = t("saveDecision");
    const close = el("button", { type: "button", class: "close", onclick: () => this.box.close() }, t("close"));
    const facts = this.scope ? this.scope.box : el("p", {}, el("b", {}, draft.node), ` ${sensorName(draft.name, unit)} `, formatPeriod(draft.from_s, draft.to_s));
    this.form = el("form", { class: "review-form" }, facts, this.effect, this.consent, this.why, this.problem, el("div", { class: "buttons" }, this.save, close));
    this.box = el("dialog", { class: "node-window review-window", "aria-label": title }, el("h2", {}, title), el("p", { class: "hint" }, hint), this.form);
    this.box.addEventListener("close", () => (this.box.remove(), discardDraft(this.why, session, name, this.why.value)));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.send();
    });
  }

  begin(): void {
    if (this.scope) void this.scope.begin();
    else {
      this.why.focus();
      void this.preview();
    }
  }

  private body(): Record<string, unknown> {
    if (this.request.kind === "revert") return { review: this.request.review, why: this.why.value.trim() };
    return { ...(this.scope?.draft() ?? this.request.draft), why: this.why.value.trim() };
  }

  private path(): string {
    return this.request.kind === "revert" ? "api/reviews/revert" : "api/reviews";
  }

  // Nothing is saved before its effect is on the screen.
  private clear(): void {
    this.asked++;
    this.save.disabled = true;
    replace(this.effect);
  }

  private async preview(problem = ""): Promise<void> {
    this.clear();
    const { asked } = this;
    this.problem.textContent = problem;
    replace(this.effect, el("p", { class: "hint" }, t("previewing")));
    try {
      const effect = await preview<Effect>(`${this.path()}/preview`, this.body());
      // A later choice has its own answer.
      if (asked !== this.asked) return;
      this.raisedTo = effect.raised_to;
      replace(this.effect, ...drawEffect(effect));
      this.consent.hidden = this.raisedTo === null;
      this.sure.required = this.raisedTo !== null;
      this.sure.checked = false;
      if (this.raisedTo !== null) (this.consent.lastElementChild as HTMLElement).textContent = t("confirmRaise", { n: this.raisedTo });
      this.save.disabled = false;
    } catch (error) {
      if (asked !== this.asked) return;
      if (error instanceof ApiError && error.status === BUSY) {
        window.setTimeout(() => asked === this.asked && this.box.open && void this.preview(problem), BUSY_WAIT_MS);
        return;
      }
      replace(this.effect);
      this.fail(error);
    }
  }

  private async send(): Promise<void> {
    this.save.disabled = true;
    try {
      const confirmed = this.sure.checked ? this.raisedTo : null;
      const view = await post<View>(this.path(), { ...this.body(), confirmed_level: confirmed });
      this.box.close();
      this.onSaved(view);
    } catch (error) {
      // New readings may have changed what it raises.
      if (isConflict(error)) return this.preview(t("reviewChanged"));
      this.fail(error);
      this.save.disabled = false;
    }
  }

  private fail(error: unknown): void {
    this.problem.textContent = (error as Error).message;
  }
}

// Node, reading and range of readings that no test doubts.
class ScopeFields {
  readonly box: HTMLElement;
  private readonly node: HTMLInputElement;
  private readonly name = el("select", { name: "reading", required: true });
  private readonly from: HTMLInputElement;
  private readonly to: HTMLInputElement;
  private readonly options = el("datalist", { id: "review-nodes" });
  private names = "";

  constructor(
    private readonly given: Draft,
    private readonly onChange: () => void,
    // While the readings of a node are not known.
    private readonly onUnknown: () => void,
  ) {
    const time = (name: string, atS: number) => el("input", { type: "datetime-local", name, value: toDateField(atS), required: true, onchange: () => this.changed() });
    this.node = el("input", { name: "node", list: "review-nodes", required: true, size: 16, onchange: () => void this.fillNames() });
    this.from = time("from", given.from_s);
    this.to = time("to", given.to_s);
    this.name.addEventListener("change", () => this.changed());
    this.box = el("div", { class: "form" }, el("label", {}, t("node"), this.node, this.options), el("label", {}, t("readingColumn"), this.name), el("label", {}, t("from"), this.from), el("label", {}, t("until"), this.to));
  }

  async begin(): Promise<void> {
    const nodes = await fetchNodes();
    replace(this.options, ...nodes.id.map((id) => el("option", { value: id })));
    this.node.focus();
  }

  // The field has minutes: the readings of the last one belong to the range, which ends at the present.
  draft(): Draft {
    return { ...this.given, node: this.node.value.trim(), name: this.name.value, from_s: fromDateField(this.from.value), to_s: Math.min(fromDateField(this.to.value) + 59.999, this.given.to_s) };
  }

  private async fillNames(): Promise<void> {
    const node = this.node.value.trim();
    if (node === this.names) return;
    this.names = node;
    // Those of the node before are not its own, nor is what they would change.
    replace(this.name);
    this.onUnknown();
    const facts = await get<NodeState>(`api/node/${encode(node)}`).catch(() => null);
    if (node !== this.names) return;
    const known = Object.entries(facts?.readings ?? {}).sort();
    replace(this.name, ...known.map(([name, { unit }]) => el("option", { value: name }, sensorName(name, unit))));
    this.changed();
  }

  private changed(): void {
    if (this.name.value && this.from.value && this.to.value) this.onChange();
  }
}

function drawEffect(effect: Effect): HTMLElement[] {
  const { before, after } = effect;
  if (!before || !after) return [el("p", { class: "no-change" }, t("noLevelChanges", { n: effect.count }))];
  const shown = (row: Shown) => el("td", {}, badge(row.level ?? 0), row.notice_level !== row.level ? el("small", {}, t("noticeLevelIs", { n: row.notice_level ?? "–" })) : null);
  const now = el("tr", {}, el("td", {}, formatTime(after.at_s)), shown(before), shown(after));
  const past = effect.changes.map((each) => el("tr", { class: (each.before ?? 0) < (each.after ?? 0) ? "more" : "fewer" }, el("td", {}, formatPeriod(each.begin_s, each.end_s)), el("td", {}, badge(each.before ?? 0)), el("td", {}, badge(each.after ?? 0))));
  const warning = effect.raised_to === null ? null : el("p", { class: "warn raises" }, t(effect.is_raised_now ? "raisesNow" : "raisesPast", { n: effect.raised_to }));
  return [
    ...(warning ? [warning] : []),
    table("narrow levels-now", [t("newestLevel"), t("asItIs"), t("asItWouldBe")], [now]).box,
    el("p", { class: effect.steps ? "changed-steps" : "no-change" }, t(effect.steps ? "stepsChange" : "noLevelChanges", { n: effect.steps || effect.count })),
    ...(past.length ? [table("narrow level-changes", [t("stormPeriod"), t("asItIs"), t("asItWouldBe")], past).box] : []),
    el("p", { class: "hint" }, t("reviewPreviewHint")),
  ];
}
