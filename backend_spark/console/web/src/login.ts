// Login form.
import { el, replace } from "./dom";
import { post, ApiError } from "./api";
import { t } from "./i18n";

export function loginForm(app: Element, place: string, done: () => void): void {
  const name = el("input", { name: "name", autocomplete: "username", required: true });
  const password = el("input", { name: "password", type: "password", autocomplete: "current-password", required: true });
  const problem = el("p", { class: "problem", role: "alert" });
  const form = el("form", { class: "login" }, el("h1", {}, `${place} ${t("title")}`.trim()), el("label", {}, t("name"), name), el("label", {}, t("password"), password), el("button", { type: "submit" }, t("login")), problem);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    post("api/login", { name: name.value, password: password.value })
      .then(done)
      .catch((error: unknown) => {
        problem.textContent = problemText(error);
      });
  });
  replace(app, form);
  name.focus();
}

function problemText(error: unknown): string {
  if (!(error instanceof ApiError)) return String(error);
  if (error.status === 429) return t("tooManyTries", { s: error.waitS });
  return error.status === 401 ? t("wrongPassword") : error.message;
}
