"""Alert detection: cells whose level rises, and urgent messages of nodes.

Each becomes one journal entry, also after a restart.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from backend_spark.console import level_grid
from backend_spark.console.audit_log import Journal
from backend_spark.console.live_state import LiveState, TableFeed
from backend_spark.i18n import message_reasons
from backend_spark.tables.schemas import TEXTS, UTC_TIME
from slope_science.findings import WARNING
from slope_science.reason_codes import ReasonCode
from slope_science.reason_text import render_english
from slope_science.reasons import Reason, reason_to_json

CLEAR_STEPS: Final = 6
"""An alert ends after an hour below the level, so that a short dip gives no new one."""

MESSAGE_COLUMNS: Final = pa.schema([
    pa.field("node", pa.string()),
    pa.field("boot", pa.string()),
    pa.field("seq", pa.int64()),
    pa.field("pri", pa.int32()),
    pa.field("cell", pa.string()),
    pa.field("why", pa.string()),
    pa.field("readings", TEXTS),
    pa.field("received_at", UTC_TIME),
    pa.field("reason", pa.string()),
    pa.field("reason_codes", TEXTS),
])
"""Columns of the table of urgent messages, which may not exist."""

_LOOK_BACK_S: Final = level_grid.HOURS * 3600.0


@dataclass
class AlertDetector:
    """Detects alerts after each refresh of the live state.

    Attributes:
        live_state: Live state.
        journal: Where alerts are written.
        tables: Folder of the tables.
        min_level: Lowest level that raises an alert.
    """

    live_state: LiveState
    journal: Journal
    tables: Path
    min_level: int = WARNING
    _in_force: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Restore the alerts in force from the journal."""
        self._messages = TableFeed(
            self.tables / "alerts", MESSAGE_COLUMNS, "received_at"
        )
        for entry in reversed(self.journal.read("alert", limit=10_000)):
            body = entry.body
            if body["what"] == "level":
                self._in_force[body["cell"]] = (body["level"], body["step_s"])

    def detect(self) -> int:
        """Write new alerts, and return their number."""
        now_s = self.live_state.clock()
        alerts = self._level_alerts()
        rows = self._messages.read_new(self.live_state.now_s() - _LOOK_BACK_S)
        if rows is not None:
            alerts += [_message_alert(row) for row in rows.to_pylist()]
        return self.journal.write_alerts(now_s, alerts)

    def _level_alerts(self) -> list[dict[str, Any]]:
        with self.live_state.lock:
            latest = zip(
                self.live_state.grid.tokens, self.live_state.grid.latest, strict=True
            )
            rows = [(token, row) for token, row in latest if row.at_s]
        alerts = []
        for token, row in rows:
            level, step_s = self._in_force.get(token, (0, 0))
            if (row.level or 0) < self.min_level:
                if row.at_s - step_s >= CLEAR_STEPS * 600:
                    self._in_force.pop(token, None)
                continue
            if row.level is not None and row.level > level:
                self._in_force[token] = (row.level, row.at_s)
                alerts.append({
                    "what": "level",
                    "key": f"{token} {row.level} {row.at_s}",
                    "cell": token,
                    "level": row.level,
                    "before": level,
                    "step_s": row.at_s,
                    "reasons": list(row.reasons),
                    "reason_codes": list(row.reason_codes),
                })
            elif row.level == level:
                self._in_force[token] = (level, row.at_s)
        return alerts


def _message_alert(row: dict[str, Any]) -> dict[str, Any]:
    """Alert of an urgent message; its level is the priority that the node chose."""
    error = () if row["why"] else (row["reason"] or "",)
    reasons = [
        *message_reasons(row["reason_codes"], row["why"] or ""),
        *(Reason(ReasonCode.TEXT, text=t) for t in (*error, *(row["readings"] or ()))),
    ]
    return {
        "what": "message",
        "key": f"{row['node']}:{row['boot']}:{row['seq']}",
        "cell": row["cell"],
        "node": row["node"],
        "level": row["pri"],
        "step_s": round(row["received_at"].timestamp()),
        "reasons": list(map(render_english, reasons)),
        "reason_codes": list(map(reason_to_json, reasons)),
    }
