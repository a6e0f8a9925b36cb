// What the page knows: cells, their levels now and over 72 hours, pushed each second,
// or a replay of another time.
import { readReplay, type Known, type Replay } from "./played";
import { bytes, get } from "./server";
import { MISSING } from "./words";

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
  newest_s: number | null;
  nodes: Record<string, number>;
  alerts: number;
  levels: number[];
  flags: number[];
  seen_s: number[];
}

type Told = Now & { kind: "all" | "some"; moved?: [number, number][] };

export interface Cells {
  geometry: number;
  tokens: string[];
  corners: number[][];
}

const LATE_S = 1800;
const HOURS_72 = 432;

// Where the slider can go.
export interface Course {
  fromS: number;
  stepS: number;
  last: number;
}

export class State extends EventTarget {
  private live: Cells = { geometry: -1, tokens: [], corners: [] };
  // null: the present and its 72 hours
  replay: Replay | null = null;
  now: Now | null = null;
  online = false;
  chosen: string | null = null;
  // Levels under assumed rain; null: none is assumed.
  assumed: number[] | null = null;
  // null: now
  atS: number | null = null;
  private history: { beginS: number; levels: Uint8Array; version: number } | null = null;
  private source: EventSource | null = null;

  listen(): void {
    this.source?.close();
    this.source = new EventSource("api/live");
    this.source.addEventListener("now", (event) => void this.take(JSON.parse((event as MessageEvent<string>).data) as Told));
    this.source.addEventListener("error", () => {
      this.online = false;
      this.tell("now");
    });
  }

  close(): void {
    this.source?.close();
  }

  private async take(told: Told): Promise<void> {
    const before = this.now;
    if (told.kind === "some" && before) {
      told.levels = before.levels;
      told.flags = before.flags;
      told.seen_s = before.seen_s;
      for (const [at, level] of told.moved ?? []) told.levels[at] = level;
    }
    this.now = told;
    this.online = true;
    if (told.geometry !== this.live.geometry) {
      this.live = await get<Cells>("api/cells");
      this.tell("cells");
    }
    this.tell("now");
    if (told.kind === "all" || told.moved?.length) this.tell("levels");
  }

  // Cells on the map: those of the replay may be others than those of today.
  get cells(): Omit<Cells, "geometry"> {
    return this.replay ?? this.live;
  }

  course(): Course {
    const { now, replay } = this;
    if (replay) return { fromS: replay.fromS, stepS: replay.stepS, last: Math.ceil((replay.toS - replay.fromS) / replay.stepS) };
    return now ? { fromS: now.begin_s, stepS: now.step_s, last: (now.at_s - now.begin_s) / now.step_s } : { fromS: 0, stepS: 600, last: HOURS_72 };
  }

  async play(fromS: number, toS: number, known: Known): Promise<void> {
    this.show(await readReplay(fromS, toS, known));
    await this.move(fromS);
  }

  async stop(): Promise<void> {
    this.show(null);
    await this.move(null);
  }

  private show(replay: Replay | null): void {
    this.replay = replay;
    this.assumed = null;
    this.tell("replay");
    this.tell("cells");
  }

  tell(name: "now" | "cells" | "levels" | "chosen" | "time" | "places" | "replay"): void {
    this.dispatchEvent(new Event(name));
  }

  choose(token: string | null): void {
    this.chosen = token;
    this.tell("chosen");
  }

  async move(atS: number | null): Promise<void> {
    this.atS = atS;
    if (atS !== null && !this.replay) await this.need();
    this.tell("time");
    this.tell("levels");
  }

  private async need(): Promise<void> {
    const version = this.now?.version ?? 0;
    if (this.history && this.history.version === version) return;
    if (this.history && performance.now() - this.fetched < 10_000) return;
    this.fetched = performance.now();
    const [levels, headers] = await bytes("api/history");
    this.history = { beginS: Number(headers.get("X-Begin")), levels, version };
  }

  private fetched = 0;

  // Level of each cell at the time chosen.
  levels(): number[] {
    if (!this.now) return [];
    const { replay, atS } = this;
    if (this.assumed) return this.assumed;
    if (replay) return this.at(replay.levels, ((atS ?? replay.toS) - replay.beginS) / replay.stepS, replay.stepS);
    if (atS === null || !this.history) return this.present();
    return this.at(this.history.levels, (atS - this.history.beginS) / this.now.step_s, this.now.step_s);
  }

  // Level of each cell of today.
  present(): number[] {
    return this.now?.levels.slice(0, this.live.tokens.length) ?? [];
  }

  private at(levels: Uint8Array, place: number, stepS: number): number[] {
    const { tokens } = this.cells;
    const steps = levels.length / Math.max(1, tokens.length);
    // The last frame may be a short one.
    const step = Math.ceil(place - 1e-6);
    return tokens.map((_, row) => {
      for (let back = 0; back <= LATE_S / stepS; back++) {
        const at = step - back;
        const level = at >= 0 && at < steps ? (levels[row * steps + at] ?? MISSING) : MISSING;
        if (level !== MISSING) return level;
      }
      return MISSING;
    });
  }
}
