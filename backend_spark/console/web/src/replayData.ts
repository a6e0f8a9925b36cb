// Requests of the replay: levels of a span, and one cell in it.
import { type CellPanel, getBytes, get, encode } from "./api";

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

export async function fetchReplay(fromS: number, toS: number, known: Known): Promise<Replay> {
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
