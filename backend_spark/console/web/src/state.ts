// What the page knows: cells, their levels now and over 72 hours, pushed each second.
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

const LATE_STEPS = 3;

export class State extends EventTarget {
  cells: Cells = { geometry: -1, tokens: [], corners: [] };
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
    if (told.geometry !== this.cells.geometry) {
      this.cells = await get<Cells>("api/cells");
      this.tell("cells");
    }
    this.tell("now");
    if (told.kind === "all" || told.moved?.length) this.tell("levels");
  }

  tell(name: "now" | "cells" | "levels" | "chosen" | "time" | "places"): void {
    this.dispatchEvent(new Event(name));
  }

  choose(token: string | null): void {
    this.chosen = token;
    this.tell("chosen");
  }

  async move(atS: number | null): Promise<void> {
    this.atS = atS;
    if (atS !== null) await this.need();
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
    const count = this.cells.tokens.length;
    if (this.assumed) return this.assumed;
    if (this.atS === null || !this.history) return this.now.levels.slice(0, count);
    const { beginS, levels } = this.history;
    const steps = levels.length / Math.max(1, count);
    const step = Math.round((this.atS - beginS) / this.now.step_s);
    return this.cells.tokens.map((_, row) => {
      for (let back = 0; back <= LATE_STEPS; back++) {
        const at = step - back;
        const level = at >= 0 && at < steps ? (levels[row * steps + at] ?? MISSING) : MISSING;
        if (level !== MISSING) return level;
      }
      return MISSING;
    });
  }
}
