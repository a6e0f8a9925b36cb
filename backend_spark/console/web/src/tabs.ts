// Tabs besides the map; each is drawn when it is opened.
import { drawEvents } from "./events";
import { drawHealth } from "./health";
import { drawSeries } from "./series";
import { drawReviews } from "./reviews";
import { drawThresholds } from "./thresholds";
import { drawSkill } from "./skill";
import type { Session } from "./api";

export interface Tab {
  name: "events" | "series" | "health" | "reviews" | "thresholds" | "skill";
  // `cell` is the token of the selected cell.
  draw: (container: HTMLElement, session: Session, cell: string | null) => Promise<void>;
}

export function openTab(name: Tab["name"]): void {
  document.querySelector<HTMLElement>(`[data-tab=${name}]`)?.click();
}

export const TABS: Tab[] = [{ name: "events", draw: drawEvents }, { name: "series", draw: drawSeries }, { name: "health", draw: drawHealth }, { name: "reviews", draw: drawReviews }, { name: "thresholds", draw: drawThresholds }, { name: "skill", draw: drawSkill }];
