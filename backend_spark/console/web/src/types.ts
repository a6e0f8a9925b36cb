// Types of the server's answers about cells, nodes and gateways.
import type { Future, Lines } from "./snakeChart";

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
