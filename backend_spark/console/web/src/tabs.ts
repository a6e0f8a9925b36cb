// Tabs besides the map; each is drawn when it is opened.
import { drawAlerts } from "./alerts";
import { drawHealth } from "./health";
import { drawThresholds } from "./thresholds";
import { drawSkill } from "./skill";
import type { Session } from "./api";

export interface Tab {
  name: "alerts" | "health" | "thresholds" | "skill";
  draw: (container: HTMLElement, session: Session) => Promise<void>;
}

export const TABS: Tab[] = [{ name: "alerts", draw: drawAlerts }, { name: "health", draw: drawHealth }, { name: "thresholds", draw: drawThresholds }, { name: "skill", draw: drawSkill }];
