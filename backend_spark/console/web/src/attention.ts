// Attention of a person at another window: number in the title, sound, and a notification of the browser.
import { el } from "./dom";
import { levelName, t } from "./i18n";

export interface OpenEvents {
  revision: number;
  count: number;
  peak: number;
  newest: number;
}

const SOUND = "yamamori-sound";
const NOTIFY = "yamamori-notify";
const SILENT_MS = 1000;
let context: AudioContext | null = null;
let called = 0;

export class Attention {
  private newest: number | null = null;

  constructor(private readonly title: string) {}

  // Quietly: another tab has rung.
  update(events: OpenEvents, isQuiet = false): void {
    document.title = events.count ? `(${events.count}) ${levelName(events.peak)} – ${this.title}` : this.title;
    // The first state after loading is no news.
    if (this.newest !== null && events.newest > this.newest && !isQuiet) this.call(events);
    this.newest = events.newest;
  }

  private call(events: OpenEvents): void {
    // Not awaited: a browser may hold the sound back until somebody clicks.
    if (localStorage.getItem(SOUND) === "on") void beep(events.peak);
    if (localStorage.getItem(NOTIFY) !== "on" || !("Notification" in window) || Notification.permission !== "granted") return;
    const words = t("eventsOpen", { n: events.count, level: levelName(events.peak) });
    // One notification for the console, replaced by the next.
    const shown = new Notification(this.title, { body: words, tag: "yamamori", icon: "static/icon.svg", requireInteraction: events.peak >= 4 });
    shown.onclick = () => (window.focus(), document.querySelector<HTMLElement>("[data-tab=events]")?.click());
  }
}

// Above the page, since nobody is warned by ear.
function showSilence(isSilent: boolean): void {
  document.querySelector(".silence")?.remove();
  if (isSilent) document.body.prepend(el("p", { class: "silence problem", role: "alert" }, t("soundHeldBack")));
}

// Two tones, repeated more often at levels 4 and 5.
async function beep(peak: number): Promise<void> {
  context ??= new AudioContext();
  const calls = ++called;
  const held = window.setTimeout(() => showSilence(true), SILENT_MS);
  await context.resume();
  clearTimeout(held);
  showSilence(false);
  // Of those that were held back, the newest rings.
  if (calls !== called) return;
  const rounds = peak >= 4 ? 4 : 2;
  for (let at = 0; at < rounds * 2; at++) {
    const tone = context.createOscillator();
    const volume = context.createGain();
    tone.frequency.value = at % 2 ? 660 : 880;
    volume.gain.value = 0.2;
    tone.connect(volume).connect(context.destination);
    tone.start(context.currentTime + at * 0.3);
    tone.stop(context.currentTime + at * 0.3 + 0.25);
  }
  document.body.dataset["rang"] = String(Number(document.body.dataset["rang"] ?? 0) + 1);
}

export function attentionSwitches(): HTMLElement {
  const sound = toggle(SOUND, t("soundOn"), () => void beep(3));
  const hint = el("small", { class: "hint" });
  const notify = toggle(NOTIFY, t("notifyOn"), (box) => void allow(box, hint));
  return el("div", { class: "attention" }, sound, "Notification" in window ? notify : null, hint);
}

function toggle(key: string, words: string, whenOn: (box: HTMLInputElement) => void): HTMLElement {
  const box = el("input", { type: "checkbox", name: key });
  box.checked = localStorage.getItem(key) === "on";
  box.addEventListener("change", () => {
    localStorage.setItem(key, box.checked ? "on" : "off");
    if (box.checked) whenOn(box);
  });
  return el("label", {}, box, words);
}

async function allow(box: HTMLInputElement, hint: HTMLElement): Promise<void> {
  if ((await Notification.requestPermission()) === "granted") return;
  box.checked = false;
  localStorage.setItem(NOTIFY, "off");
  hint.textContent = t("notifyDenied");
}
