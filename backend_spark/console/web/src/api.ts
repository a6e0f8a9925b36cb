// Requests to the console's server, and its answers about cells, nodes and gateways; loads, actions and drafts of a page.
import { t } from "./i18n";
import type { Future, Lines } from "./snakeChart";

export class ApiError extends Error {
  constructor(
    // 0: no answer came.
    readonly status: number,
    message: string,
    readonly waitS = 0,
    // What a login lacks, "code", or a CAP message: "level" or "judgement". Else nothing.
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
  now_s: number;
  // End of the session; null without one.
  until_s?: number | null;
  role?: "viewer" | "analyst" | "chief";
  proof?: string;
}

let proof = "";
let user: string | null = null;

export function setProof(session: Session): void {
  proof = session.proof ?? "";
  user = session.user;
}

const FORBIDDEN = 403;
const BAD_GATEWAY = 502;

// How long no byte of an answer may come. A preview judges a month again, and 20 MB take long.
const ANSWER_MS = 30_000;
const PREVIEW_MS = 300_000;
const UPLOAD_MS = 1_800_000;

interface Patience {
  waitMs: number;
  // Without an answer it is not known whether the request was carried out.
  isChange?: true;
}

// Requests that change nothing and have no answer yet.
const reads = new Set<AbortController>();

// On a link that was lost without an error they would wait for ever: now they fail, as on one with an error.
export function dropReads(): void {
  for (const each of reads) each.abort();
}

// A whole answer.
async function receive(path: string, options: RequestInit, { waitMs, isChange }: Patience): Promise<[Response, ArrayBuffer]> {
  const request = new AbortController();
  let timer = 0;
  const wait = () => {
    clearTimeout(timer);
    timer = window.setTimeout(() => request.abort(), waitMs);
  };
  if (!isChange) reads.add(request);
  wait();
  try {
    const answer = await fetch(path, { ...options, signal: request.signal });
    const parts = new TransformStream<Uint8Array<ArrayBuffer>, Uint8Array<ArrayBuffer>>({ transform: (part, out) => (wait(), out.enqueue(part)) });
    return [answer, await new Response(answer.body?.pipeThrough(parts)).arrayBuffer()];
  } finally {
    clearTimeout(timer);
    reads.delete(request);
  }
}

async function send(path: string, options: RequestInit, patience: Patience): Promise<[ArrayBuffer, Headers]> {
  const unanswered = t(patience.isChange ? "unanswered" : "offline");
  const [answer, content] = await receive(path, options, patience).catch(() => {
    throw new ApiError(0, unanswered);
  });
  if (answer.ok) return [content, answer.headers];
  const body = errorBody(content);
  // From 502 a proxy answers for a server that it does not reach.
  const unexplained = answer.status < BAD_GATEWAY ? answer.statusText : unanswered;
  const explained = body.folder ? t("cannotSave", { folder: body.folder }) : body.detail;
  const words = typeof explained === "string" ? explained : unexplained;
  if (answer.status === 401) window.dispatchEvent(new Event("yamamori-login"));
  throw new ApiError(answer.status, words, Number(answer.headers.get("Retry-After")), body.needs);
}

function decode<T>(content: ArrayBuffer): T {
  return JSON.parse(new TextDecoder().decode(content)) as T;
}

function errorBody(content: ArrayBuffer): { detail?: unknown; needs?: string; folder?: string } {
  try {
    return decode(content);
  } catch {
    return {};
  }
}

export async function get<T>(path: string): Promise<T> {
  const [content] = await send(path, {}, { waitMs: ANSWER_MS });
  return decode(content);
}

export async function getBytes(path: string): Promise<[Uint8Array, Headers]> {
  const [content, headers] = await send(path, {}, { waitMs: ANSWER_MS });
  return [new Uint8Array(content), headers];
}

// A login in another tab of the browser ends the session of this page. It goes on with the new one, if it is of the same user.
async function sendProven<T>(path: string, type: string, body: BodyInit, patience: Patience, isAgain = false): Promise<T> {
  const sent = proof;
  const headers = { "Content-Type": type, "X-Yamamori-Proof": sent };
  try {
    return decode((await send(path, { method: "POST", headers, body }, patience))[0]);
  } catch (error) {
    if (isAgain || !(error instanceof ApiError) || error.status !== FORBIDDEN) throw error;
    const session = await get<Session>("api/session");
    if (session.user !== user) throw new ApiError(FORBIDDEN, t("otherUser", { name: session.user ?? "" }));
    if (session.proof === sent) throw error;
    setProof(session);
    return sendProven(path, type, body, patience, true);
  }
}

export function post<T>(path: string, body: unknown = {}, patience: Patience = { waitMs: ANSWER_MS, isChange: true }): Promise<T> {
  return sendProven(path, "application/json", JSON.stringify(body), patience);
}

// Computes something, and changes nothing.
export function preview<T>(path: string, body: unknown): Promise<T> {
  return post(path, body, { waitMs: PREVIEW_MS });
}

export function upload<T>(path: string, file: Blob): Promise<T> {
  return sendProven(path, "application/octet-stream", file, { waitMs: UPLOAD_MS, isChange: true });
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

// A level and the rate or speed from which it is reached.
export type LevelLimit = [number, number];

export interface CellPanel {
  token: string;
  begin_s: number;
  step_s: number;
  swi_mm: (number | null)[];
  r60_mm: (number | null)[];
  tilt_rate_deg_per_h: (number | null)[];
  tilt_limits: LevelLimit[];
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

// On a slow link a second action begins before the first has ended. What could not be read is read again after this time.
export const RETRY_MS = 5000;

// Runs one at a time. A call meanwhile begins one more afterwards, and ends with it.
export function oneAtATime(run: () => Promise<void>): () => Promise<void> {
  let isStale = false;
  let running: Promise<void> | null = null;
  const runAll = async () => {
    while (isStale) {
      isStale = false;
      await run();
    }
  };
  return () => {
    isStale = true;
    running ??= runAll().finally(() => (running = null));
    return running;
  };
}

// A second click would send the same again.
export async function disableWhile(box: HTMLElement, run: () => Promise<unknown>): Promise<void> {
  const all = box instanceof HTMLButtonElement ? [box] : [...box.querySelectorAll("button")];
  const buttons = all.filter((each) => !each.disabled);
  const focused = document.activeElement;
  for (const each of buttons) each.disabled = true;
  try {
    await run();
  } finally {
    for (const each of buttons) each.disabled = false;
    // A button that is disabled loses the focus.
    if (focused instanceof HTMLElement && document.activeElement === document.body) focused.focus({ preventScroll: true });
  }
}

type Field = HTMLInputElement | HTMLTextAreaElement;

function keyOf(session: Session, name: string): string {
  return `yamamori-draft ${session.user ?? ""} ${name}`;
}

// What is being written is kept in the browser until it is sent, also when the session ends.
export function keepDraft(field: Field, session: Session, name: string): void {
  const key = keyOf(session, name);
  field.value = localStorage.getItem(key) ?? "";
  field.addEventListener("input", () => (field.value ? localStorage.setItem(key, field.value) : localStorage.removeItem(key)));
}

// What was written since it was sent stays.
export function discardDraft(field: Field, session: Session, name: string, sent: string): void {
  if (field.value !== sent) return;
  field.value = "";
  localStorage.removeItem(keyOf(session, name));
}
