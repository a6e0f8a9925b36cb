"""Reports of a node whose disk cannot be written.

A worn SD card becomes read-only. The node goes on with messages in memory
(`edge_agent.queue.spare`), until somebody replaces the card, or corrects `queue.path`
if that is at fault.
"""

from collections.abc import Callable
from typing import Final

from edge_agent.queue.base import QueueStats
from edge_agent.triage.engine import TriageResult
from slope_science.findings import LOWEST
from slope_science.reason_codes import ReasonCode
from slope_science.reason_text import render_english
from slope_science.reasons import Reason
from spatial_mqtt.senml import Reading

PRIORITY: Final = 3
"""Above routine, so that the report is sent at once; below every alarm."""

FIRST_REPORT_S: Final = 30.0
"""A disk that fails for less, as while another program uses the file, is no report."""

REPORT_EVERY_S: Final = 3600.0
HEALTH: Final = "disk/health"
OK: Final = "ok"


def format_disk_failure(stats: QueueStats) -> str | None:
    """Format that the disk cannot be written, and what to do; None while it can."""
    if stats.failure is None:
        return None
    return f"{render_english(_reason(stats))} ({stats.failure})"


class DiskReports:
    """Decides when the state of the disk is reported.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due_s: float | None = None
        self._is_reported = False

    def due_report(
        self, stats: QueueStats
    ) -> tuple[list[Reading], TriageResult] | None:
        """Readings to report now, with their priority and reason; None for nothing."""
        text, now_s = format_disk_failure(stats), self._clock()
        if text is None:
            return self._recovery()
        if self._due_s is None:
            self._due_s = now_s + FIRST_REPORT_S
        if now_s < self._due_s:
            return None
        self._due_s, self._is_reported = now_s + REPORT_EVERY_S, True
        reason = _reason(stats)
        why = render_english(reason)
        return [Reading(HEALTH, None, text)], TriageResult(
            PRIORITY, why, LOWEST, (reason,)
        )

    def _recovery(self) -> tuple[list[Reading], TriageResult] | None:
        """The report that the disk can be written again, if a failure was reported."""
        was_reported, self._is_reported, self._due_s = self._is_reported, False, None
        if not was_reported:
            return None
        return [Reading(HEALTH, None, OK)], TriageResult(PRIORITY, None, LOWEST)


def _reason(stats: QueueStats) -> Reason:
    code = ReasonCode.QUEUE_MISPLACED if stats.is_misplaced else ReasonCode.DISK_FAILED
    return Reason(code, count=stats.unstored)
