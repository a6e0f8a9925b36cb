// Notifications: the rules, a test of each, and the newest deliveries.
import { el, replace } from "./dom";
import { disableWhile } from "./actions";
import { get, post, type Session } from "./api";
import type { NotificationLine } from "./eventFields";
import { currentLanguage, formatTime, t, type Key } from "./i18n";

interface View {
  rules: { name: string; from_level: number; unacknowledged_min: number; addresses: number; unknown_districts: string[] }[];
  notifications: (NotificationLine & { id: number })[];
}

export class Notifications {
  private readonly rules = el("ul", { class: "rules" });
  private readonly lines = el("ul", { class: "deliveries" });
  private readonly problem = el("p", { class: "problem", role: "alert" });
  readonly box = el("details", { class: "notifications" }, el("summary", {}, t("notifications")), this.rules, this.problem, this.lines);

  constructor(private readonly session: Session) {}

  async load(): Promise<void> {
    this.show(await get<View>("api/notifications"));
  }

  private show(view: View): void {
    const late = view.notifications.filter((line) => line.state === "waiting" && line.attempts.length > 0).length;
    replace(this.box.querySelector("summary") as HTMLElement, t("notifications"), late ? el("b", { class: "late" }, t("notificationsLate", { n: late })) : null);
    const unknown = (names: string[]) => (names.length ? el("b", { class: "problem" }, t("unknownDistricts", { names: names.join(currentLanguage() === "ja" ? "、" : ", ") })) : null);
    const rules = view.rules.map((rule) => el("li", {}, el("b", {}, rule.name), ` ${t("eventFromLevel", { n: rule.from_level })} ${rule.unacknowledged_min ? t("notificationAfter", { n: rule.unacknowledged_min }) : ""}`, this.session.role === "chief" ? el("button", { type: "button", "data-test": rule.name, onclick: () => this.test(rule.name) }, t("notificationTest")) : null, unknown(rule.unknown_districts)));
    replace(this.rules, ...(rules.length ? rules : [el("li", {}, t("noRules"))]));
    replace(this.lines, ...view.notifications.map(notificationLine));
  }

  private test(rule: string): void {
    replace(this.problem);
    const send = () =>
      post<View>("api/notifications/test", { rule })
        .then((view) => this.show(view))
        .catch((error: unknown) => (this.problem.textContent = (error as Error).message));
    void disableWhile(this.rules, send);
  }
}

export function notificationLine(line: NotificationLine): HTMLElement {
  const last = line.attempts.at(-1);
  const tries = last && last.number > 1 ? t("notificationTries", { n: last.number }) : "";
  const outcome = last?.outcome && last.outcome !== "delivered" ? ` – ${last.outcome}` : "";
  const at = formatTime(last?.at_s ?? line.due_s);
  return el("li", { "data-delivery": line.state }, el("b", {}, `${line.rule} `), `${line.to} `, el("b", {}, t(`notification_${line.state}` as Key)), ` ${at} ${tries}${outcome}`);
}
