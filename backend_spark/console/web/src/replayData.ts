// Levels of any span that the tables hold, and one cell in it.
import type { CellFacts } from "./facts";
import { bytes, get, part } from "./server";

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

export type Moment = Pick<CellFacts, "latest" | "reasons" | "more" | "futures"> & { version: number; revised_because: string | null };

export async function readReplay(fromS: number, toS: number, known: Known): Promise<Replay> {
  const [told, headers] = await bytes(`api/replay/levels?from_s=${fromS}&to_s=${toS}&known=${known}`);
  const length = Number(headers.get("X-Head-Bytes"));
  const { begin_s, from_s, to_s, frame_s, frames: _, ...head } = JSON.parse(new TextDecoder().decode(told.subarray(0, length))) as Head;
  return { ...head, beginS: begin_s, fromS: from_s, toS: to_s, stepS: frame_s, levels: told.subarray(length) };
}

// What the map shows of a cell in the frame that ends at a moment.
export function momentOf(token: string, atS: number, replay: Replay | null): Promise<Moment | null> {
  const fromS = replay && atS > replay.fromS ? atS - replay.stepS + 600 : atS;
  return get(`api/replay/cell/${part(token)}/frame?from_s=${fromS}&to_s=${atS}&known=${replay?.known ?? "now"}`);
}

type Numbers = Pick<CellFacts, "token" | "begin_s" | "step_s" | "swi_mm" | "r60_mm" | "tilt_rate_deg_per_h" | "tilt_deg_per_h" | "lines">;
let kept: { of: Replay; token: string; numbers: Numbers | null } | null = null;

export async function numbersOf(token: string, replay: Replay): Promise<Numbers | null> {
  if (kept?.of === replay && kept.token === token) return kept.numbers;
  const numbers = await get<Numbers | null>(`api/replay/cell/${part(token)}?from_s=${replay.fromS}&to_s=${replay.toS}&known=${replay.known}`);
  kept = { of: replay, token, numbers };
  return numbers;
}
