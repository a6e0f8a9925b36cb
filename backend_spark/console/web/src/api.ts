// Requests to the console's server, and its answers about cells, nodes and gateways.
import { t } from "./i18n";
import type { Future, Lines } from "./snakeChart";

export class ApiError extends Error {
  constructor(
    // 0: no answer came.
    readonly status: number,
    message: string,
    readonly waitS = 0,
    // What a login lacks: "code", or nothing.
    readonly needs = "",
  ) {
    super(message);
  }
}

// A tile pack that the console serves.
export interface Pack {
  tiles: string;
  vector: boolean;
  layers: string[];
  min_zoom: number;
  max_zoom: number;
  bounds: [number, number, number, number];
  attribution: string;
}

export function isConflict(error: unknown): boolean {
  return error instanceof ApiError && error.status === 409;
}

export interface Session {
  place: string;
  language: "ja" | "en";
  tiles: string | null;
  packs?: Pack[];
  exercise: boolean;
  // OpenID provider beside the accounts.
  provider: { name: string; url: string } | null;
  user: string | null;
  role?: "viewer" | "analyst" | "chief";
  proof?: string;
}

let proof = "";

export function setProof(text: string | undefined): void {
  proof = text ?? "";
}

const BAD_GATEWAY = 502;

async function send(path: string, options: RequestInit = {}): Promise<Response> {
  const answer = await fetch(path, options).catch(() => {
    throw new ApiError(0, t("offline"));
  });
  if (answer.ok) return answer;
  const body = (await answer.json().catch(() => ({}))) as { detail?: unknown; needs?: string; folder?: string };
  // From 502 a proxy answers for a server that it does not reach.
  const unexplained = answer.status < BAD_GATEWAY ? answer.statusText : t("offline");
  const explained = body.folder ? t("cannotSave", { folder: body.folder }) : body.detail;
  const words = typeof explained === "string" ? explained : unexplained;
  if (answer.status === 401) window.dispatchEvent(new Event("yamamori-login"));
  throw new ApiError(answer.status, words, Number(answer.headers.get("Retry-After")), body.needs);
}

export async function get<T>(path: string): Promise<T> {
  return (await send(path)).json() as Promise<T>;
}

export async function getBytes(path: string): Promise<[Uint8Array, Headers]> {
  const answer = await send(path);
  return [new Uint8Array(await answer.arrayBuffer()), answer.headers];
}

export async function post<T>(path: string, body: unknown = {}): Promise<T> {
  const answer = await send(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Yamamori-Proof": proof },
    body: JSON.stringify(body),
  });
  return answer.json() as Promise<T>;
}

export async function upload<T>(path: string, file: Blob): Promise<T> {
  const headers = { "Content-Type": "application/octet-stream", "X-Yamamori-Proof": proof };
  return (await send(path, { method: "POST", headers, body: file })).json() as Promise<T>;
}

export const encode = encodeURIComponent;

export type Reason = { en: string; ja: string };

export interface NodeState {
  id: string;
  cell: string | null;
  place: [number, number] | null;
  state: string;
  flag: number | null;
  at_s: number;
  received_s: number;
  synchronised: boolean;
  age_s: number | null;
  readings: Record<string, { at_s: number; value: number | null; text: string | null; unit: string | null; flag: number | null }>;
}

export interface CellPanel {
  token: string;
  begin_s: number;
  step_s: number;
  swi_mm: (number | null)[];
  r60_mm: (number | null)[];
  tilt_rate_deg_per_h: (number | null)[];
  tilt_deg_per_h: [number, number];
  latest: { at_s: number; level: number | null; n_nodes: number; history_days: number | null; flags: number; state: string; known_until_s: number | null };
  reasons: Reason[];
  causes: string[];
  chance: Reason[];
  more: Partial<Record<"margin_mm" | "effective_1h5_mm" | "effective_72h_mm" | "moisture_percentile" | "pore_percentile" | "completeness" | "official_level", number | null>>;
  lines: Lines;
  futures: Future[];
  nodes: NodeState[];
}

export interface Gateway {
  id: string;
  state: string;
  areas: string[];
  place: [number, number] | null;
  exact: boolean;
  nodes: number;
  received_s: number | null;
}
