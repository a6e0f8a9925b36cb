// Tabs besides the map; each is drawn when it is opened.
import { drawEvents } from "./events";
import { drawHealth } from "./health";
import { drawSeries } from "./series";
import { drawThresholds } from "./thresholds";
import { drawSkill } from "./skill";
import type { Session } from "./api";

export interface Tab {
  name: "events" | "series" | "health" | "thresholds" | "skill";
  draw: (container: HTMLElement, session: Session) => Promise<void>;
}

export const TABS: Tab[] = [{ name: "events", draw: drawEvents }, { name: "series", draw: drawSeries }, { name: "health", draw: drawHealth }, { name: "thresholds", draw: drawThresholds }, { name: "skill", draw: drawSkill }];
