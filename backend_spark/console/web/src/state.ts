// State of the page: cells and their levels, now and over 72 hours, as pushed by the
// server each second, or a replay of another time.
import { dropReads, getBytes, get, type Session, type CellPanel, encode, oneAtATime } from "./api";
import { type OpenEvents, OtherTabs } from "./attention";
import { HELD_OFFSET, isHeld, MISSING, severity } from "./i18n";

export type Known = "now" | "then";

interface Head {
  tokens: string[];
  corners: number[][];
  begin_s: number;
  from_s: number;
  to_s: number;
  frame_s: number;
  frames: number;
  known: Known;
  revised: number;
}

export interface Replay {
  tokens: string[];
  corners: number[][];
  beginS: number;
  fromS: number;
  toS: number;
  stepS: number;
  known: Known;
  revised: number;
  levels: Uint8Array;
}

export type Moment = Pick<CellPanel, "latest" | "reasons" | "causes" | "more" | "futures"> & { version: number; revised_because: string | null };

async function fetchReplay(fromS: number, toS: number, known: Known): Promise<Replay> {
  const [content, headers] = await getBytes(`api/replay/levels?from_s=${fromS}&to_s=${toS}&known=${known}`);
  const length = Number(headers.get("X-Head-Bytes"));
  const { begin_s, from_s, to_s, frame_s, frames: _, ...head } = JSON.parse(new TextDecoder().decode(content.subarray(0, length))) as Head;
  return { ...head, beginS: begin_s, fromS: from_s, toS: to_s, stepS: frame_s, levels: content.subarray(length) };
}

// A cell as the map shows it in the frame that ends at a time.
export function fetchMoment(token: string, atS: number, replay: Replay | null): Promise<Moment | null> {
  const fromS = replay && atS > replay.fromS ? atS - replay.stepS + 600 : atS;
  return get(`api/replay/cell/${encode(token)}/frame?from_s=${fromS}&to_s=${atS}&known=${replay?.known ?? "now"}`);
}

type Series = Pick<CellPanel, "token" | "begin_s" | "step_s" | "swi_mm" | "r60_mm" | "tilt_rate_deg_per_h" | "tilt_limits" | "lines">;
let cache: { of: Replay; token: string; numbers: Series | null } | null = null;

export async function fetchSeries(token: string, replay: Replay): Promise<Series | null> {
  if (cache?.of === replay && cache.token === token) return cache.numbers;
  const numbers = await get<Series | null>(`api/replay/cell/${encode(token)}?from_s=${replay.fromS}&to_s=${replay.toS}&known=${replay.known}`);
  cache = { of: replay, token, numbers };
  return numbers;
}

export interface Now {
  version: number;
  geometry: number;
  now_s: number;
  read_s: number;
  at_s: number;
  begin_s: number;
  end_s: number;
  step_s: number;
  exercise: boolean;
  // Whether events and notifications are not saved, because the disk is full.
  unsaved: boolean;
  newest_s: number | null;
  nodes: Record<string, number>;
  events: OpenEvents;
  levels: number[];
  flags: number[];
  seen_s: number[];
  known_s: number[];
  // Begin of the present level from level 2 on, in gold too; 0: unknown.
  since_s: number[];
  margin_mm: (number | null)[];
  // Causes of the level, rain first, with blanks between them.
  causes: string[];
}

// Of a moved cell: its number, level, known_s, since_s, causes and margin_mm.
type LiveEvent = Now & { kind: "all" | "some"; moved?: [number, number, number, number, string, number | null][] };

export interface Cells {
  geometry: number;
  tokens: string[];
  corners: number[][];
}

// The server sends an event each second: a longer silence is a link that was lost without an error, as after a sleep of the computer.
const SILENT_MS = 15_000;
// The first event of a connection has all cells, which take long on a slow link.
const FIRST_MS = 90_000;
// After it the levels from before a pause are marked as old.
const RESUME_MS = 3000;
const LATE_S = 1800;
export const CAUSES = ["rain", "tilt", "displacement", "wire", "vibration", "saturation", "pore", "water_level", "limit", "other"];
const DAY_S = 86_400;
// Age of the newest level from which the present is not judged.
export const STALE_S = 1800;
const HOURS_72 = 432;
const HISTORY_STEPS = HOURS_72 + 1;

// Range of the slider.
interface SliderRange {
  fromS: number;
  stepS: number;
  last: number;
}

export class State extends EventTarget {
  private live: Cells = { geometry: -1, tokens: [], corners: [] };
  // null: the present and the last 72 hours.
  replay: Replay | null = null;
  now: Now | null = null;
  online = false;
  // Newest open events, which do not wait for the cells.
  events: OpenEvents | null = null;
  // Whether another tab rings for this one, which has received nothing itself since.
  isQuiet = false;
  selected: string | null = null;
  // Levels under assumed rain; null: no what-if.
  assumed: number[] | null = null;
  // Unix time that is shown; null: now.
  atS: number | null = null;
  private history: { beginS: number; levels: Uint8Array; version: number } | null = null;
  private source: EventSource | null = null;
  // Newest state, while its cells are on the way, and whether a level differs from those that are shown.
  private newest: LiveEvent | null = null;
  private hasMoved = false;
  private fetched: Cells | null = null;
  private readonly showNewest = oneAtATime(() => this.showCells());
  private heardMs = 0;
  private limitMs = SILENT_MS;
  private watch = 0;
  private isPaused = false;
  private readonly others = new OtherTabs(
    (events) => this.pause(events),
    () => this.isPaused && this.listen(),
  );
  private start: () => void = () => undefined;
  private readonly begun = new Promise<void>((resolve) => (this.start = resolve));

  constructor() {
    super();
    document.addEventListener("visibilitychange", () => document.hidden || this.resume());
    addEventListener("pagehide", () => this.isPaused || this.others.ended());
  }

  listen(): void {
    this.source?.close();
    this.isPaused = false;
    this.restartWatch(SILENT_MS);
    this.watch ||= window.setInterval(() => this.checkSilence(), SILENT_MS / 5);
    this.source = new EventSource("api/live");
    this.source.addEventListener("open", () => this.restartWatch(FIRST_MS));
    this.source.addEventListener("now", (message) => this.onEvent(JSON.parse((message as MessageEvent<string>).data) as LiveEvent));
    this.source.addEventListener("error", () => {
      this.showOffline();
      // The browser gives up when the session has ended; else it connects again.
      if (this.source?.readyState === EventSource.CLOSED) void this.checkSession();
    });
  }

  private showOffline(): void {
    if (this.online) dropReads();
    this.online = false;
    void this.begun.then(() => this.emit("now"));
  }

  // Also connects again where the browser has given up, as after an answer 502.
  private checkSilence(): void {
    if (performance.now() - this.heardMs < this.limitMs) return;
    if (!this.isPaused) this.showOffline();
    this.listen();
  }

  private restartWatch(limitMs: number): void {
    this.heardMs = performance.now();
    this.limitMs = limitMs;
  }

  // Another tab listens while this one is hidden.
  private pause(events: OpenEvents): void {
    if (!this.now) return;
    this.restartWatch(SILENT_MS);
    this.events = events;
    this.isQuiet = true;
    this.emit("events");
    if (this.isPaused) return;
    this.isPaused = true;
    this.source?.close();
    this.others.ended();
  }

  private resume(): void {
    if (!this.isPaused) return;
    this.listen();
    const { source } = this;
    window.setTimeout(() => source === this.source && !this.isPaused && this.isQuiet && this.showOffline(), RESUME_MS);
  }

  close(): void {
    clearInterval(this.watch);
    this.watch = 0;
    this.source?.close();
    if (!this.isPaused) this.others.ended();
  }

  private async checkSession(): Promise<void> {
    const session = await get<Session>("api/session").catch(() => null);
    if (session?.user === null) dispatchEvent(new Event("yamamori-login"));
  }

  // Nothing is emitted before: who listens is made while the first answer is on the way.
  begin(): void {
    this.start();
  }

  private onEvent(event: LiveEvent): void {
    this.restartWatch(SILENT_MS);
    this.isQuiet = false;
    this.events = event.events;
    this.others.received(event.events);
    const before = this.newest ?? this.now;
    if (event.kind === "some" && before) addMoved(event, before);
    this.newest = event;
    this.hasMoved ||= event.kind === "all" || !!event.moved?.length;
    void this.begun.then(() => this.emit("events"));
    void this.showNewest().catch(() => undefined);
  }

  // A state is shown with its own cells only: those of a server that has started again may have another order.
  private async showCells(): Promise<void> {
    await this.begun;
    const wanted = this.newest?.geometry;
    if (wanted !== this.live.geometry && wanted !== this.fetched?.geometry) this.fetched = await get<Cells>("api/cells");
    const event = this.newest;
    const hasNewCells = event?.geometry !== this.live.geometry;
    const cells = hasNewCells ? this.fetched : this.live;
    // The next event has the state of the fetched cells, or fetches others.
    if (!event || event.geometry !== cells?.geometry) return;
    this.newest = null;
    this.now = event;
    this.online = true;
    if (hasNewCells) {
      this.live = cells;
      this.fetched = null;
      // Its rows are those of the cells before.
      this.history = null;
      this.emit("cells");
    }
    this.emit("now");
    // It failed when it was asked for.
    if (this.atS !== null && !this.replay && !this.history && !this.loading) void this.showTime(this.atS);
    if (this.hasMoved || hasNewCells) this.emit("levels");
    this.hasMoved = false;
  }

  // Cells on the map; a replay may have other cells than today.
  get cells(): Omit<Cells, "geometry"> {
    return this.replay ?? this.live;
  }

  sliderRange(): SliderRange {
    const { now, replay } = this;
    if (replay) return { fromS: replay.fromS, stepS: replay.stepS, last: Math.ceil((replay.toS - replay.fromS) / replay.stepS) };
    return now ? { fromS: now.begin_s, stepS: now.step_s, last: (now.at_s - now.begin_s) / now.step_s } : { fromS: 0, stepS: 600, last: HOURS_72 };
  }

  async startReplay(fromS: number, toS: number, known: Known): Promise<void> {
    const asked = ++this.replays;
    const replay = await fetchReplay(fromS, toS, known);
    // Other dates were chosen meanwhile, or the present.
    if (asked !== this.replays) return;
    this.show(replay);
    await this.showTime(fromS);
  }

  async stopReplay(): Promise<void> {
    this.replays++;
    this.show(null);
    await this.showTime(null);
  }

  private show(replay: Replay | null): void {
    this.replay = replay;
    this.assumed = null;
    this.emit("replay");
    this.emit("cells");
  }

  emit(name: "now" | "events" | "cells" | "levels" | "selected" | "time" | "places" | "replay"): void {
    this.dispatchEvent(new Event(name));
  }

  select(token: string | null): void {
    this.selected = token;
    this.emit("selected");
  }

  async showTime(atS: number | null): Promise<void> {
    this.atS = atS;
    this.emit("time");
    this.emit("levels");
    // The present must not stay on the map as the past, while this is fetched or if it fails.
    if (atS === null || this.replay || this.hasHistory()) return;
    await this.loadHistory().catch(() => undefined);
    this.emit("levels");
  }

  // Causes of the levels of some cells, rain first; of the present only.
  causesOf(wanted: (at: number) => boolean): string[] {
    if (this.atS !== null || this.assumed) return this.assumed ? ["rain"] : [];
    const found = new Set((this.now?.causes ?? []).filter((_, at) => wanted(at)).flatMap((causes) => causes.split(" ")));
    return CAUSES.filter((cause) => found.has(cause));
  }

  // Levels of the last 72 hours, also before the slider is moved.
  async loadHistory(): Promise<void> {
    if (this.hasHistory()) return;
    this.loading ??= this.fetchHistory(this.now?.version ?? 0).finally(() => (this.loading = null));
    return this.loading;
  }

  private hasHistory(): boolean {
    return this.history !== null && (this.history.version === (this.now?.version ?? 0) || performance.now() - this.fetchedMs < 10_000);
  }

  private async fetchHistory(version: number): Promise<void> {
    this.fetchedMs = performance.now();
    const [levels, headers] = await getBytes("api/history");
    this.history = { beginS: Number(headers.get("X-Begin")), levels, version };
  }

  private replays = 0;
  private fetchedMs = 0;
  private loading: Promise<void> | null = null;

  // Level of each cell at the time that is shown.
  levels(): number[] {
    if (!this.now) return [];
    const { replay, atS } = this;
    if (this.assumed) return this.assumed;
    if (replay) return this.levelsAt(replay.levels, ((atS ?? replay.toS) - replay.beginS) / replay.stepS, replay.stepS);
    if (atS === null) return this.present();
    // Never the present under "past", while the history is being fetched or failed.
    if (!this.history) return this.live.tokens.map(() => MISSING);
    return this.levelsAt(this.history.levels, (atS - this.history.beginS) / this.now.step_s, this.now.step_s);
  }

  // Present level of each cell.
  present(): number[] {
    return this.now?.levels.slice(0, this.live.tokens.length) ?? [];
  }

  // Cell with the highest present level; null without cells.
  worst(): string | null {
    // A judged level before the same one that is held.
    const levels = this.present().map((level) => severity(level) * 2 + Number(!isHeld(level)));
    return this.live.tokens[levels.indexOf(Math.max(...levels))] ?? null;
  }

  private levelsAt(levels: Uint8Array, place: number, stepS: number): number[] {
    const { replay } = this;
    const { tokens } = this.cells;
    // A history that was fetched before a cell was added lacks its row.
    const steps = replay ? levels.length / Math.max(1, tokens.length) : HISTORY_STEPS;
    // The last frame may be shorter.
    const step = Math.ceil(place - 1e-6);
    return tokens.map((_, row) => {
      for (let back = 0; back <= LATE_S / stepS; back++) {
        const at = step - back;
        const level = at >= 0 && at < steps ? (levels[row * steps + at] ?? MISSING) : MISSING;
        if (level !== MISSING) return level;
      }
      return replay ? MISSING : this.heldLevel(row, step, stepS);
    });
  }

  // Level of a silent cell: a level from 3 on is held, level 2 for a day. A replay has it from the server.
  private heldLevel(row: number, step: number, stepS: number): number {
    const { history, now } = this;
    if (!history || !now) return MISSING;
    for (let at = Math.min(step, HISTORY_STEPS - 1); at >= 0; at--) {
      const level = history.levels[row * HISTORY_STEPS + at] ?? MISSING;
      if (level === MISSING) continue;
      const known = severity(level);
      // The day of level 2 begins where it was judged, not at its last row.
      let judged = at;
      while (judged > 0 && history.levels[row * HISTORY_STEPS + judged] === HELD_OFFSET + 2) judged--;
      return known >= 3 || (known === 2 && (step - judged) * stepS <= DAY_S) ? HELD_OFFSET + known : MISSING;
    }
    // Silent since before the history: held then as it is now.
    return (now.seen_s[row] ?? 0) < history.beginS ? (now.levels[row] ?? MISSING) : MISSING;
  }
}

// Age of the newest level of any cell.
export function ageOf({ newest_s, now_s }: Now): number {
  return newest_s === null ? Infinity : now_s - newest_s;
}

// Completes an event that has only what has moved since the one before.
function addMoved(event: LiveEvent, before: Now): void {
  event.levels = before.levels;
  event.flags = before.flags;
  event.seen_s = before.seen_s;
  event.known_s = before.known_s;
  event.since_s = before.since_s;
  event.margin_mm = before.margin_mm;
  event.causes = before.causes;
  for (const [at, level, knownS, sinceS, causes, margin] of event.moved ?? []) {
    event.levels[at] = level;
    event.known_s[at] = knownS;
    event.since_s[at] = sinceS;
    event.causes[at] = causes;
    event.margin_mm[at] = margin;
  }
}
