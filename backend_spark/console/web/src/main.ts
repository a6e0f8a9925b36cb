// The page: session, tabs, map, panel and slider.

import { followAddress } from "./address";
import { ENDED, showAccount, loginForm } from "./account";
import { RETRY_MS, get, post, setProof, type Session } from "./api";
import { el, replace } from "./dom";
import { Attention, hasSound, ring, RING_MS } from "./attention";
import { LevelMap } from "./map";
import { showNode } from "./health";
import { Overview } from "./overview";
import { Overlays } from "./overlays";
import { Panel } from "./panel";
import { loadNames, nodesIn } from "./names";
import { presetNodes } from "./series";
import { Slider } from "./slider";
import { ageOf, STALE_S, State } from "./state";
import { TABS, type Tab } from "./tabs";
import { formatAgo, formatClock, setLanguage, currentLanguage, t, formatTime, type Language } from "./i18n";

const ENDS_SOON_MS = 1_800_000;
const CHECK_MS = 10_000;
const app = document.getElementById("app") as HTMLElement;

function language(session: Session): Language {
  const wanted = new URLSearchParams(location.search).get("lang") ?? localStorage.getItem("yamamori-language") ?? session.language;
  return wanted === "en" ? "en" : "ja";
}

async function start(): Promise<void> {
  const state = new State();
  // Its answer is on the way while the page is built.
  state.listen();
  const session = await fetchSession();
  setLanguage(language(session));
  setProof(session);
  document.title = `${session.place} ${t("title")}`.trim();
  // Reload: preloaded requests were rejected, and their results would be used.
  if (session.user === null) {
    state.close();
    loginForm(app, session, () => location.reload());
  } else {
    sessionStorage.removeItem(ENDED);
    show(session, state);
  }
}

// Again until it is there: without it there is no page.
async function fetchSession(): Promise<Session> {
  for (;;) {
    try {
      return await get<Session>("api/session");
    } catch (error) {
      replace(app, el("p", { class: "problem", role: "alert" }, (error as Error).message));
      await new Promise((again) => window.setTimeout(again, RETRY_MS));
    }
  }
}

function show(session: Session, state: State): void {
  const openNode = (id: string) => void showNode(id);
  const map = new LevelMap(state, session, openNode);
  const overview = new Overview(state);
  const panel = new Panel(state, openNode, session);
  const slider = new Slider(state);
  const side = el("aside", { class: "side" }, overview.box);
  const home = el("main", { class: "home", id: "home" }, map.box, side, slider.box);
  const other = el("main", { class: "other", hidden: true });
  const status = el("div", { class: "status", role: "status" });
  const ending = el("p", { class: "ending warn", role: "alert", hidden: true });
  replace(app, head(session, state, home, other), status, ending, home, other);
  slider.build();
  let isOnline = true;
  state.addEventListener("now", () => {
    showStatus(status, state);
    if (state.online && !isOnline) dispatchEvent(new Event("yamamori-online"));
    isOnline = state.online;
  });
  const attention = followEvents(state);
  followSession(session, state, ending);
  const drawSide = () => (state.selected ? void panel.draw() : overview.draw());
  let isDrawn = false;
  state.addEventListener("levels", () => isDrawn && drawSide());
  map.afterPicture(() => ((isDrawn = true), drawSide()));
  state.addEventListener("places", () => state.selected || overview.draw());
  state.addEventListener("selected", () => {
    replace(side, state.selected ? panel.box : overview.box);
    if (state.selected) {
      side.scrollTop = home.scrollTop = 0;
      map.goTo(state.selected);
      void panel.draw();
    } else overview.draw();
  });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) state.select(null);
  });
  presetNodes(() => nodesIn(state.selected ?? state.worst() ?? ""));
  map.start();
  state.begin();
  map.whenDrawn(() => slider.prepare());
  new Overlays(map, session);
  followAddress(state, map);
  addEventListener("yamamori-login", () => void leave(state, attention), { once: true });
}

// To the login form, which receives no events.
async function leave(state: State, attention: Attention): Promise<void> {
  state.close();
  sessionStorage.setItem(ENDED, "1");
  if (!state.isQuiet) {
    attention.lose(t("sessionEnded"));
    if (hasSound()) await new Promise((heard) => window.setTimeout(heard, RING_MS));
  }
  location.reload();
}

// States the end of the session before it comes.
function followSession(session: Session, state: State, box: HTMLElement): void {
  let end = Infinity;
  let until: Session["until_s"] = null;
  const show = ({ now_s, until_s }: Session) => {
    until = until_s;
    end = until_s ? Date.now() + (until_s - now_s) * 1000 : Infinity;
    box.hidden = end - Date.now() > ENDS_SOON_MS;
    box.textContent = box.hidden ? "" : t("sessionEnds", { t: formatClock(until_s ?? 0) });
  };
  const check = async () => {
    if (end - Date.now() > ENDS_SOON_MS) return;
    // A change of the password begins a new one, also while the end of this is stated.
    const newest = await get<Session>("api/session").catch(() => null);
    if (!newest || (!box.hidden && newest.until_s === until)) return;
    show(newest);
    if (!box.hidden && !state.isQuiet) ring(document.title, box.textContent);
  };
  show(session);
  window.setInterval(() => void check(), CHECK_MS);
}

function head(session: Session, state: State, home: HTMLElement, other: HTMLElement): HTMLElement {
  const tabs = el("nav", { class: "tabs" });
  const open = (name: string) => {
    for (const tab of tabs.children) tab.setAttribute("aria-current", String(tab.getAttribute("data-tab") === name));
    home.hidden = name !== "map";
    other.hidden = name === "map";
    const tab = TABS.find((each) => each.name === name);
    // Never another page under the name of this one: the data of one that was left may arrive late.
    const page = el("div", {});
    replace(other, page);
    if (tab) void drawTab(tab, page, session, state);
  };
  const names = ["map" as const, ...TABS.map((tab) => tab.name)];
  tabs.append(...names.map((name) => el("button", { type: "button", "data-tab": name, "aria-current": String(name === "map"), onclick: () => open(name) }, t(name))));
  tabs.append(el("a", { href: `report?lang=${currentLanguage()}`, target: "_blank", rel: "noopener", class: "report" }, `${t("report")} ↗`));
  const otherLanguage = currentLanguage() === "ja" ? "en" : "ja";
  const languageButton = el("button", { type: "button", class: "language", onclick: () => (setLanguage(otherLanguage), location.assign(`?lang=${otherLanguage}${location.hash}`)) }, otherLanguage === "en" ? "English" : "日本語");
  const accountButton = session.user ? el("button", { type: "button", class: "account", onclick: () => showAccount(session) }, session.user) : null;
  const logoutButton = session.user ? el("button", { type: "button", class: "logout", onclick: () => logOut(state) }, t("logout")) : null;
  return el("header", { class: "top" }, el("h1", {}, el("img", { src: "static/icon.svg", alt: "", width: 26, height: 26 }), `${session.place} ${t("title")}`.trim()), session.exercise ? el("span", { class: "exercise", title: t("exerciseLong") }, t("exercise")) : null, tabs, languageButton, accountButton, logoutButton);
}

// Nothing rings: somebody is there. Where it fails, the page goes on.
function logOut(state: State): void {
  state.close();
  post("api/logout").then(() => location.reload()).catch(() => state.listen());
}

// After an outage the page that could not be drawn is drawn, if it is still open.
async function drawTab(tab: Tab, page: HTMLElement, session: Session, state: State): Promise<void> {
  try {
    await loadNames();
    await tab.draw(page, session, state.selected);
  } catch (error) {
    const box = el("p", { class: "problem", role: "alert" }, (error as Error).message);
    replace(page, box);
    addEventListener("yamamori-online", () => box.isConnected && void drawTab(tab, page, session, state), { once: true });
  }
}

// Title, sound and notification, and lists that are open, follow the events.
function followEvents(state: State): Attention {
  const attention = new Attention(document.title);
  let revision = -1;
  let unjudged = "";
  // Whether an event lasts is not known where its cell is no longer judged.
  state.addEventListener("levels", () => {
    const found = state.present().map((level) => Number(level < 1 || level > 5)).join("");
    if (found === unjudged) return;
    unjudged = found;
    dispatchEvent(new Event("yamamori-events"));
  });
  state.addEventListener("now", () => {
    if (state.online) return;
    // A server that has started again counts from the begin.
    revision = -1;
    attention.setOnline(false, state.isQuiet);
  });
  state.addEventListener("events", () => {
    const { events, isQuiet } = state;
    if (!events || (events.revision === revision && !isQuiet)) return;
    attention.setOnline(true, isQuiet);
    attention.update(events, isQuiet);
    // The lists of a hidden tab are fetched when it is shown.
    if (isQuiet) return;
    revision = events.revision;
    dispatchEvent(new Event("yamamori-events"));
  });
  return attention;
}

function showStatus(status: HTMLElement, state: State): void {
  const { now } = state;
  if (!now) return;
  const tab = document.querySelector<HTMLElement>("[data-tab=events]");
  if (tab) tab.dataset["count"] = now.events.count ? String(now.events.count) : "";
  const age = ageOf(now);
  const isStale = age > STALE_S;
  const words = !state.online ? t("offline") : now.unsaved ? t("unsaved") : now.newest_s === null ? t("noData") : isStale ? `${t("stale")}${formatTime(now.newest_s)}（${formatAgo(age)}）` : "";
  status.textContent = words;
  status.classList.toggle("alarm", words !== "");
}

void start();
