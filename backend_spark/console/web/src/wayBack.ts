// Way back of a cell: notice and drill from the backend to the alarms on the slope.
import { outputBadge } from "./badges";
import { el, replace } from "./dom";
import { disableWhile } from "./actions";
import { get, post, encode, type Session } from "./api";
import { formatAgo, formatClock, formatSeconds, formatTime, levelName, t } from "./i18n";

interface Order {
  level: number;
  at_s: number;
  until_s: number;
  in_force: boolean;
  withdrawn: boolean;
  held: boolean;
  accepted: { broker: string; at_s: number }[];
}

interface Receipt {
  level: number;
  at_s: number;
  received_s: number | null;
  is_newest: boolean;
}

interface NodeReport {
  id: string;
  reported_s: number | null;
  gateway: string | null;
  outputs: Record<string, string> | null;
  notice: Receipt | null;
  drill: Receipt | null;
}

interface View {
  now_s: number;
  notice: Order | null;
  drill: Order | null;
  nodes: NodeReport[];
  drill_by: string | null;
}

const POLL_MS = 4000;
const HALF_DAY_S = 43_200;
const MINUTES = [1, 3, 5, 10];

// One element for the whole life of the page, since the panel around it is drawn anew.
export class WayBack {
  readonly box = el("section", { class: "way-back" });
  private readonly stages = el("div", {});
  private readonly exercise = el("div", { class: "drill" });
  private readonly problem = el("p", { class: "problem", role: "alert" });
  private token = "";
  // Requests that were sent, and the newest one whose answer is not too late.
  private asked = 0;
  private drawn = 0;
  // Cell whose state is on the way.
  private loading = "";

  constructor(private readonly session: Session) {
    replace(this.box, el("h3", {}, t("wayBack")), this.stages, this.exercise, this.problem);
    window.setInterval(() => this.token && this.box.isConnected && void this.load(), POLL_MS);
  }

  show(token: string): void {
    if (token === this.token) return;
    this.token = token;
    this.drawn = this.asked;
    replace(this.stages);
    replace(this.exercise);
    replace(this.problem);
    void this.load();
  }

  private async load(): Promise<void> {
    const { token } = this;
    if (token === this.loading) return;
    this.loading = token;
    const asked = ++this.asked;
    const view = await get<View>(`api/cell/${encode(token)}/way-back`).catch(() => null);
    if (token === this.loading) this.loading = "";
    if (!view || asked <= this.drawn) return;
    this.drawn = asked;
    this.draw(view);
  }

  private draw(view: View): void {
    replace(this.stages, ...this.notice(view));
    // A form that is being filled in stays, and an order that is on the way.
    if (!this.exercise.querySelector("form, :disabled")) replace(this.exercise, ...this.drill(view));
  }

  private notice(view: View): HTMLElement[] {
    const { notice, nodes } = view;
    const silent = notice?.in_force && !notice.accepted.length ? el("li", { class: "late" }, t("notAccepted")) : null;
    const sent = notice?.in_force ? [el("li", { class: "done" }, el("b", {}, t("noticeSent", { level: levelName(notice.level), t: at(notice.at_s) })), ` ${t("validUntil", { t: formatClock(notice.until_s) })}${notice.held ? ` – ${t("noticeHeld")}` : ""}`), ...accepted(notice), silent] : [el("li", {}, t("noNotice"))];
    const rows = nodes.map((node) => el("li", { class: node.outputs ? "" : "none", "data-alarm": node.id }, el("b", {}, node.id), " ", received(node, notice?.in_force ? notice : null, node.notice), outputs(node, view.now_s)));
    return [el("ol", { class: "stages" }, ...sent, ...rows)];
  }

  private drill(view: View): HTMLElement[] {
    const { drill, nodes } = view;
    const canStart = this.session.role === "chief";
    if (drill?.in_force) {
      const button = canStart ? el("button", { type: "button", class: "end-drill", onclick: () => this.send({ end: true }) }, t("endDrill")) : null;
      const rows = nodes.map((node) => el("li", {}, el("b", {}, node.id), " ", received(node, drill, node.drill)));
      return [el("div", { class: "drill-banner", role: "status" }, el("strong", {}, t("drillNow", { level: levelName(drill.level), t: at(drill.until_s) })), el("span", {}, t("notAnAlarm")), button), el("ol", { class: "stages" }, el("li", { class: "done" }, t("drillOrdered", { who: view.drill_by ?? "", t: at(drill.at_s) })), ...accepted(drill), ...rows)];
    }
    const last = drill ? el("p", { class: "hint" }, t("lastDrill", { level: levelName(drill.level), t: at(drill.at_s), who: view.drill_by ?? "" })) : null;
    return [canStart ? el("button", { type: "button", class: "start-drill", onclick: () => this.ask() }, t("startDrill")) : null, last].filter((part): part is NonNullable<typeof part> => part !== null);
  }

  private ask(): void {
    const level = el("select", { name: "drill-level" }, ...[5, 4, 3, 2].map((n) => el("option", { value: n, selected: n === 4 }, levelName(n))));
    const minutes = el("select", { name: "drill-minutes" }, ...MINUTES.map((n) => el("option", { value: n }, t("minutes", { n }))));
    const cancel = el("button", { type: "button", onclick: () => (replace(this.exercise), void this.load()) }, t("back"));
    const form = el("form", { class: "drill-form" }, el("p", {}, t("drillAsk")), el("label", {}, t("levelColumn"), level), el("label", {}, t("duration"), minutes), el("div", { class: "buttons" }, el("button", { type: "submit", class: "start-drill" }, t("startDrillNow")), cancel));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send({ level: Number(level.value), minutes: Number(minutes.value) });
    });
    replace(this.exercise, form);
    form.querySelector("select")?.focus();
  }

  private send(body: object): void {
    void disableWhile(this.exercise, () => this.order(body));
  }

  private async order(body: object): Promise<void> {
    const token = this.token;
    try {
      const view = await post<View>("api/drills", { cell: token, ...body });
      if (token !== this.token) return;
      this.drawn = this.asked;
      replace(this.exercise);
      replace(this.problem);
      this.draw(view);
    } catch (error) {
      if (token === this.token) this.problem.textContent = (error as Error).message;
    }
  }
}

// With the day where a time alone could be taken for one of today.
function at(seconds: number): string {
  return Date.now() / 1000 - seconds > HALF_DAY_S ? formatTime(seconds) : formatSeconds(seconds);
}

function accepted(order: Order): HTMLElement[] {
  return order.accepted.map(({ broker, at_s }) => el("li", { class: "done" }, t("acceptedBy", { broker, t: at(at_s) })));
}

function received(node: NodeReport, order: Order | null, receipt: Receipt | null): HTMLElement | null {
  if (!order) return null;
  if (!receipt?.is_newest) return el("span", { class: "late" }, t(node.outputs ? "notReceived" : "noReport"));
  const time = receipt.received_s ? at(receipt.received_s) : t("beforeRestart");
  return el("span", { class: "received passed" }, t("receivedVia", { gateway: node.gateway ?? "–", t: time }));
}

function outputs(node: NodeReport, nowS: number): HTMLElement {
  if (!node.outputs) return el("span", { class: "hint" }, t("noOutputs"));
  const words = Object.entries(node.outputs).map(([name, state]) => outputBadge(name, state));
  return el("span", { class: "outputs" }, ...words, el("small", {}, t("reportedAt", { t: formatAgo(nowS - (node.reported_s ?? nowS)) })));
}
