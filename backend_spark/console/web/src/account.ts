// Login form, and the window of the account: one's own password, and for chiefs the accounts of others.
import { el, table, replace } from "./dom";
import { disableWhile, ApiError, get, post, type Session } from "./api";
import { notify } from "./attention";
import { t, type Key } from "./i18n";

type Role = "viewer" | "analyst" | "chief";

interface Account {
  name: string;
  role: Role;
  locked: boolean;
  second_factor: boolean;
  token: boolean;
}

const ROLES: Role[] = ["viewer", "analyst", "chief"];
const MIN_PASSWORD = 10;

export function showAccount(session: Session): void {
  const close = el("button", { type: "button", class: "close", onclick: () => window.close() }, t("close"));
  const window = el("dialog", { class: "node-window account-window", "aria-label": t("account") }, el("div", { class: "head" }, el("h2", {}, `${session.user} – ${t(`role_${session.role ?? "viewer"}`)}`), close), passwordForm());
  if (session.role === "chief") window.append(accounts(session));
  window.addEventListener("close", () => window.remove());
  document.body.append(window);
  window.showModal();
}

interface Outcome {
  box: HTMLElement;
  done: () => void;
  fail: (error: unknown) => void;
}

function outcome(): Outcome {
  const box = el("p", { role: "alert" });
  const show = (style: string, words: string) => ((box.className = style), (box.textContent = words));
  return { box, done: () => show("done", t("saved")), fail: (error) => show("problem", words(error)) };
}

function words(error: unknown): string {
  if (!(error instanceof ApiError)) return t("offline");
  if (error.status === 429) return t("tooManyTries", { s: error.waitS });
  return error.status === 403 ? t("wrongOldPassword") : error.message;
}

function secret(name: string, label: Key, complete: "current-password" | "new-password"): [HTMLInputElement, HTMLElement] {
  const least = complete === "new-password" ? { minlength: MIN_PASSWORD } : {};
  const field = el("input", { name, type: "password", autocomplete: complete, required: true, maxlength: 1000, ...least });
  return [field, el("label", {}, t(label), field)];
}

function passwordForm(): HTMLElement {
  const [old, oldLabel] = secret("old", "oldPassword", "current-password");
  const [fresh, freshLabel] = secret("new", "newPassword", "new-password");
  const { box, done, fail } = outcome();
  const form = el("form", { class: "form password" }, oldLabel, freshLabel, el("button", { class: "primary", type: "submit" }, t("changePassword")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const send = () =>
      post("api/password", { old: old.value, new: fresh.value })
        .then(() => (form.reset(), done()))
        .catch(fail);
    void disableWhile(form, send);
  });
  return el("section", {}, el("h3", {}, t("changePassword")), form, box);
}

function accounts(session: Session): HTMLElement {
  const { box, done, fail } = outcome();
  const rows = table("accounts", [t("name"), t("role"), t("state"), t("what")]);
  const show = (all: Account[]) => rows.fill(all.map((each) => row(each, each.name === session.user, change)));
  const change = (body: object, path = "api/accounts/change"): Promise<boolean> =>
    post<Account[]>(path, body)
      .then((all) => (show(all), done(), true))
      .catch((error: unknown) => (fail(error), false));
  get<Account[]>("api/accounts").then(show).catch(fail);
  return el("section", {}, el("h3", {}, t("accounts")), rows.box, newAccount(change), box);
}

function row(account: Account, isOwn: boolean, change: (body: object) => Promise<boolean>): HTMLTableRowElement {
  const { name } = account;
  const role = el("select", { "aria-label": `${t("role")} ${name}`, disabled: isOwn, onchange: () => void change({ name, role: role.value }).then((done) => done || (role.value = account.role)) }, ...ROLES.map((each) => el("option", { value: each, selected: each === account.role }, t(`role_${each}`))));
  const marks = [account.locked ? t("locked") : "", account.second_factor ? t("secondFactor") : "", account.token ? t("token") : ""].filter(Boolean);
  const lock = el("button", { type: "button", "data-lock": name, onclick: () => void change({ name, locked: !account.locked }) }, t(account.locked ? "unlock" : "lock"));
  return el("tr", { "data-account": name }, el("td", {}, el("b", {}, name)), el("td", {}, role), el("td", {}, marks.join(", ") || "–"), el("td", {}, isOwn ? null : lock));
}

function newAccount(change: (body: object, path: string) => Promise<boolean>): HTMLElement {
  const name = el("input", { name: "account", autocomplete: "off", required: true, maxlength: 64 });
  const role = el("select", { name: "role" }, ...ROLES.map((each) => el("option", { value: each, selected: each === "analyst" }, t(`role_${each}`))));
  const [password, label] = secret("first", "firstPassword", "new-password");
  const form = el("form", { class: "form new-account" }, el("label", {}, t("name"), name), el("label", {}, t("role"), role), label, el("button", { class: "primary", type: "submit" }, t("addAccount")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const send = () => change({ name: name.value, role: role.value, password: password.value }, "api/accounts").then((added) => added && form.reset());
    void disableWhile(form, send);
  });
  return form;
}

// Why a sign-in by the provider failed.
const REASONS: Record<string, Key> = { away: "signInAway", refused: "signInRefused", late: "signInLate", invalid: "signInInvalid", name: "signInName", role: "signInRole", full: "signInFull" };

// Set when a page is left because its session has ended.
export const ENDED = "yamamori-ended";

export function loginForm(app: Element, session: Session, done: () => void): void {
  const name = el("input", { name: "name", autocomplete: "username", required: true, maxlength: 64 });
  const password = el("input", { name: "password", type: "password", autocomplete: "current-password", required: true, maxlength: 1000 });
  const code = el("input", { name: "code", autocomplete: "one-time-code", inputmode: "numeric", maxlength: 7 });
  const codeLabel = el("label", { hidden: true }, t("code"), code);
  const reason = REASONS[new URLSearchParams(location.search).get("login") ?? ""];
  if (reason) history.replaceState(null, "", location.pathname);
  const problem = el("p", { class: "problem", role: "alert" }, reason ? t(reason) : "");
  const provider = session.provider ? el("a", { class: "provider", href: session.provider.url }, t("signInBy", { name: session.provider.name })) : null;
  const form = el("form", { class: "login" }, el("h1", {}, `${session.place} ${t("title")}`.trim()), provider, el("label", {}, t("name"), name), el("label", {}, t("password"), password), codeLabel, el("button", { type: "submit" }, t("login")), problem);
  if (sessionStorage.getItem(ENDED)) {
    document.title = `⚠ ${document.title}`;
    // Some browsers close that of the page before.
    notify(document.title, t("sessionEnded"));
    form.prepend(el("p", { class: "ended warn", role: "alert" }, t("sessionEnded")));
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    post("api/login", { name: name.value, password: password.value, code: code.value })
      .then(done)
      .catch((error: unknown) => {
        problem.textContent = problemText(error, !codeLabel.hidden);
        if (!(error instanceof ApiError) || error.status !== 401) return;
        if (error.needs === "code") codeLabel.hidden = false;
        code.value = "";
        if (!codeLabel.hidden) code.focus();
      });
  });
  replace(app, el("main", {}, form));
  name.focus();
}

function problemText(error: unknown, withCode: boolean): string {
  if (!(error instanceof ApiError)) return String(error);
  if (error.status === 0) return t("offline");
  if (error.status === 429) return t("tooManyTries", { s: error.waitS });
  if (error.status !== 401) return error.message;
  return error.needs === "code" ? t("codeNeeded") : t(withCode ? "wrongCode" : "wrongPassword");
}
