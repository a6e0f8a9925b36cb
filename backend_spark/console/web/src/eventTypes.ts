// Types of the server's answers about events.
import type { Reason } from "./types";

export type EventState = "open" | "acknowledged" | "checked" | "false_alarm" | "slope_failed" | "closed";

export const STATES: EventState[] = ["open", "acknowledged", "checked", "false_alarm", "slope_failed", "closed"];

export interface EventRow {
  number: number;
  cell: string | null;
  nodes: string[];
  first_s: number;
  last_s: number;
  over_s: number | null;
  peak: number;
  peak_s: number;
  causes: string[];
  messages: number;
  reasons: Reason[];
  state: EventState;
  state_s: number;
  who: string;
  text: string;
  // Newest entry that a person must know who decides.
  asked: number;
}

export interface HistoryLine {
  at_s: number;
  who: string;
  what: EventState | "opened" | "rose" | "cause" | "over" | "level" | "message";
  text?: string;
  step_s?: number;
  level?: number;
  node?: string | null;
  reasons?: Reason[];
}

export interface NotificationLine {
  rule: string;
  to: string;
  state: string;
  created_s: number;
  due_s: number;
  attempts: { number: number; at_s: number; outcome: string }[];
}

export interface EventDetail extends EventRow {
  history: HistoryLine[];
  notifications: NotificationLine[];
}
