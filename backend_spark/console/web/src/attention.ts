// Attention of a person at another window: number in the title, sound, and a notification of the browser; which tab rings.
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
const LOST_MS = 60_000;
const DANGER = 4;
// The longest sound.
export const RING_MS = 2500;
let context: AudioContext | null = null;
let called = 0;

export class Attention {
  private newest: number | null = null;
  private lost = 0;
  private notice: Notification | null = null;

  constructor(private readonly title: string) {}

  // Quietly: another tab has rung.
  update(events: OpenEvents, isQuiet = false): void {
    document.title = events.count ? `(${events.count}) ${levelName(events.peak)} – ${this.title}` : this.title;
    // The first state after loading is no news.
    if (this.newest !== null && events.newest > this.newest && !isQuiet) {
      const shown = ring(this.title, t("eventsOpen", { n: events.count, level: levelName(events.peak) }), events.peak);
      if (shown) shown.onclick = () => (window.focus(), document.querySelector<HTMLElement>("[data-tab=events]")?.click());
    }
    this.newest = events.newest;
  }

  // New events are not received: nobody must rely on silence.
  lose(words: string): void {
    this.markTitle();
    this.notice = ring(this.title, words);
  }

  // The same after a minute without the server.
  setOnline(isOnline: boolean, isQuiet: boolean): void {
    if (isOnline) {
      clearTimeout(this.lost);
      this.lost = 0;
      this.notice?.close();
      this.notice = null;
      return;
    }
    this.markTitle();
    if (!isQuiet) this.lost ||= window.setTimeout(() => this.lose(t("lostCall")), LOST_MS);
  }

  private markTitle(): void {
    document.title = `⚠ ${t("noLink")} – ${this.title}`;
  }
}

export function hasSound(): boolean {
  return localStorage.getItem(SOUND) === "on";
}

// Sound and notification, where they are switched on; without a level for what is no event.
export function ring(title: string, words: string, peak: number | null = null): Notification | null {
  // Not awaited: a browser may hold the sound back until somebody clicks.
  if (hasSound()) void beep(peak ?? DANGER);
  return notify(title, words, peak);
}

export function notify(title: string, words: string, peak: number | null = null): Notification | null {
  if (localStorage.getItem(NOTIFY) !== "on" || !("Notification" in window) || Notification.permission !== "granted") return null;
  // One notification of each kind, replaced by the next.
  const tag = peak === null ? "yamamori-link" : "yamamori";
  return new Notification(title, { body: words, tag, icon: "static/icon.svg", requireInteraction: (peak ?? DANGER) >= DANGER });
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
  const rounds = peak >= DANGER ? 4 : 2;
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

// Without HTTP/2 a browser has six connections to a server, and the stream of a tab keeps one of them: hidden tabs leave it to
// another tab, which rings for them. A tab states that it has received an event, or that it has closed its stream.
type Message = Rank & { events: OpenEvents | null };

interface Rank {
  id: number;
  // Whether the browser lets it sound, and whether it is shown.
  canRing: boolean;
  isShown: boolean;
}

export class OtherTabs {
  private readonly channel = new BroadcastChannel(`yamamori ${location.pathname}`);
  private readonly id = Math.random();
  // The tab whose events were received last.
  private follows = 0;

  constructor(
    // Another tab that rings at least as well has received this.
    private readonly onEvents: (events: OpenEvents) => void,
    private readonly onEnd: () => void,
  ) {
    this.channel.addEventListener("message", ({ data }: MessageEvent<Message>) => this.onMessage(data));
  }

  received(events: OpenEvents): void {
    this.channel.postMessage({ ...this.rank(), events });
  }

  ended(): void {
    this.channel.postMessage({ ...this.rank(), events: null });
  }

  private rank(): Rank {
    // A browser that does not know this holds no sound back.
    const canRing = (navigator.userActivation as UserActivation | undefined)?.hasBeenActive ?? true;
    return { id: this.id, canRing, isShown: !document.hidden };
  }

  private onMessage(other: Message): void {
    if (other.events === null) {
      if (other.id === this.follows) this.onEnd();
      return;
    }
    if (document.hidden && isBefore(other, this.rank())) {
      this.follows = other.id;
      this.onEvents(other.events);
    }
  }
}

function isBefore(one: Rank, other: Rank): boolean {
  if (one.canRing !== other.canRing) return one.canRing;
  return one.isShown === other.isShown ? one.id < other.id : one.isShown;
}
