// CAP messages: make a draft, update or cancel the one in force, and the feed's address.
import { el, replace } from "./dom";
import { encode, get, post } from "./api";
import { formatTime, t } from "./i18n";

type Kind = "Alert" | "Update" | "Cancel";

interface Message {
  identifier: string;
  type: Kind;
  status: string;
  title: string;
  who: string;
  at_s: number;
}

interface View {
  may_edit: boolean;
  in_force: string | null;
  messages: Message[];
}

const SHOWN = 5;

// One element for the whole life of the page: the overview around it is drawn anew each second.
export class CapMessages {
  readonly box = el("details", { class: "cap", ontoggle: () => void this.open() }, el("summary", {}, t("capMessages")));
  private readonly content = el("div", {});

  constructor() {
    this.box.append(this.content);
  }

  private async open(): Promise<void> {
    if (this.box.open) await this.load(() => get<View>("api/cap"));
  }

  private async load(request: () => Promise<View>): Promise<void> {
    try {
      this.draw(await request());
    } catch (error: unknown) {
      const problem = el("p", { class: "problem", role: "alert" }, (error as Error).message);
      this.content.querySelector(".problem")?.remove();
      this.content.append(problem);
    }
  }

  private draw(view: View): void {
    const kinds: Kind[] = view.in_force === null ? ["Alert"] : ["Update", "Cancel"];
    const buttons = kinds.map((kind) => el("button", { type: "button", "data-cap": kind, onclick: () => void this.make(kind) }, t(`cap${kind}`)));
    const rows = view.messages.slice(0, SHOWN).map((each) => {
      const link = el("a", { href: `cap/${encode(each.identifier)}.xml`, download: "" }, `${t(`cap${each.type}Name`)} ${formatTime(each.at_s)}`);
      return el("li", { "data-type": each.type }, link, el("small", {}, ` ${each.status} – ${each.who}`), el("div", {}, each.title));
    });
    const state = el("p", {}, view.in_force === null ? t("capNone") : t("capInForce", { id: view.in_force }));
    const feed = el("p", {}, el("a", { href: "cap/feed.atom" }, t("capFeed")));
    replace(this.content, el("p", { class: "hint" }, t("capHint")), state, view.may_edit ? el("div", { class: "form" }, ...buttons) : el("p", { class: "hint" }, t("needsAnalyst")), el("ul", { class: "files" }, ...rows), feed);
  }

  private async make(kind: Kind): Promise<void> {
    if (kind === "Cancel" && !confirm(t("capCancelAsk"))) return;
    for (const button of this.content.querySelectorAll("button")) button.disabled = true;
    await this.load(() => post<View>("api/cap", { type: kind }));
    for (const button of this.content.querySelectorAll("button")) button.disabled = false;
  }
}
