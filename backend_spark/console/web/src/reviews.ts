// Review of readings: doubtful spans to judge, and the decisions with their state.
import { el, replace, table } from "./dom";
import { badge, flagBadge } from "./badges";
import { get, type Session } from "./api";
import { cellLabel, fetchNodes, sensorName, unitName } from "./names";
import { openReview, type Decision, type Draft, type Request, type Span, type View } from "./reviewWindow";
import { openSeries } from "./series";
import { currentLanguage, formatPeriod, formatTime, t } from "./i18n";

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
    replace(this.job, jobState(view));
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

function jobState({ job }: View): HTMLElement {
  if (job.state === "reads") return el("p", { class: "hint job-reads" }, t("reviewJobReads"));
  const words = { unreported: t("reviewJobUnreported"), reads_none: t("reviewJobReadsNone"), reads_other: t("reviewJobReadsOther", { path: job.path ?? "" }) }[job.state];
  const line = job.state === "unreported" ? null : el("code", { class: "setting" }, `reviews = "${job.expected}"`);
  return el("div", { class: "warn job-state", role: "status" }, words, line);
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
