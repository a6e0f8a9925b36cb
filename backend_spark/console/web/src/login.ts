// Login form.
import { el, replace } from "./dom";
import { post, ApiError, type Session } from "./api";
import { t, type Key } from "./i18n";

// Why a sign-in by the provider failed.
const REASONS: Record<string, Key> = { away: "signInAway", refused: "signInRefused", late: "signInLate", invalid: "signInInvalid", name: "signInName", role: "signInRole", full: "signInFull" };

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
  if (error.status === 429) return t("tooManyTries", { s: error.waitS });
  if (error.status !== 401) return error.message;
  return error.needs === "code" ? t("codeNeeded") : t(withCode ? "wrongCode" : "wrongPassword");
}
