// CAP messages: make a draft, update or cancel the one in force, and the feed's address.
import { el, replace } from "./dom";
import { disableWhile } from "./actions";
import { ApiError, encode, get, post } from "./api";
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
// Status of a request that names another message than the one in force.
const CHANGED = 412;

// One element for the whole life of the page: the overview around it is drawn anew each second.
export class CapMessages {
  readonly box = el("details", { class: "cap", ontoggle: () => void this.open() }, el("summary", {}, t("capMessages")));
  private readonly content = el("div", {});

  constructor() {
    this.box.append(this.content);
  }

  private async open(): Promise<void> {
    if (this.box.open) await this.load();
  }

  private async load(): Promise<void> {
    try {
      this.draw(await get<View>("api/cap"));
    } catch (error) {
      this.fail((error as Error).message);
    }
  }

  private fail(words: string): void {
    this.content.querySelector(".problem")?.remove();
    this.content.append(el("p", { class: "problem", role: "alert" }, words));
  }

  private draw(view: View): void {
    const kinds: Kind[] = view.in_force === null ? ["Alert"] : ["Update", "Cancel"];
    const buttons = kinds.map((kind) => el("button", { type: "button", "data-cap": kind, onclick: () => void disableWhile(this.content, () => this.make(kind, view.in_force)) }, t(`cap${kind}`)));
    const rows = view.messages.slice(0, SHOWN).map((each) => {
      const link = el("a", { href: `cap/${encode(each.identifier)}.xml`, download: "" }, `${t(`cap${each.type}Name`)} ${formatTime(each.at_s)}`);
      return el("li", { "data-type": each.type }, link, el("small", {}, ` ${each.status} – ${each.who}`), el("div", {}, each.title));
    });
    const state = el("p", {}, view.in_force === null ? t("capNone") : t("capInForce", { id: view.in_force }));
    const feed = el("p", {}, el("a", { href: "cap/feed.atom" }, t("capFeed")));
    replace(this.content, el("p", { class: "hint" }, t("capHint")), state, view.may_edit ? el("div", { class: "form" }, ...buttons) : el("p", { class: "hint" }, t("needsAnalyst")), el("ul", { class: "files" }, ...rows), feed);
  }

  // What it replaces is the message that is shown, not one that somebody else has made meanwhile.
  private async make(kind: Kind, replaces: string | null): Promise<void> {
    if (kind === "Cancel" && !confirm(t("capCancelAsk"))) return;
    try {
      this.draw(await post<View>("api/cap", { type: kind, replaces }));
    } catch (error) {
      const isOther = error instanceof ApiError && error.status === CHANGED;
      if (isOther) await this.load();
      this.fail(isOther ? t("capChanged") : lacking(kind, error));
    }
  }
}

// Why no message can be made of the levels; the server names the options of a command.
function lacking(kind: Kind, error: unknown): string {
  const needs = error instanceof ApiError ? error.needs : "";
  if (needs === "judgement") return t("capNoJudgement");
  if (needs === "level") return t(kind === "Update" ? "capNoUpdate" : "capNoLevel");
  return (error as Error).message;
}
