"""State of each version of the thresholds: whether the scoring job has applied it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from backend_spark.console.audit_log import JournalEntry
from backend_spark.console.thresholds import ALL_CELLS, Thresholds
from backend_spark.criteria.applied_criteria import AppliedReport, change_number

REPLACED: Final = "replaced"
WAITING: Final = "waiting"
APPLIED: Final = "applied"
NOT_READ: Final = "not_read"


@dataclass(frozen=True)
class ThresholdStates:
    """States of versions, by the job's report.

    Attributes:
        thresholds: The versions in force.
        entries: Versions of the journal, newest first.
        report: The job's report; None without one.
        cells: All cells of the map.
    """

    thresholds: Thresholds
    entries: Sequence[JournalEntry]
    report: AppliedReport | None
    cells: Sequence[str]

    def job(self) -> dict[str, Any]:
        """Whether the job reads the changes of this console.

        ``unreported``, ``reads_none``, ``reads_other`` or ``reads``, and the two paths.
        """
        ours = str(self.thresholds.table.absolute())
        read = None if self.report is None else self.report.changes
        if self.report is None:
            state = "unreported"
        elif read is None:
            state = "reads_none"
        else:
            state = "reads" if read == ours else "reads_other"
        return {"state": state, "path": read, "expected": ours}

    def of(self, entry: JournalEntry) -> dict[str, Any]:
        """State of a version: how many of its cells are scored with it.

        Attributes:
            state: ``replaced``, ``not_read``, ``waiting`` or ``applied``.
            n_cells: Cells for which it is in force.
            n_applied: Those that the job has scored with it.
            applied_s: Unix time at which the last of them was; None: not all are.
        """
        cells = self._in_force.get(entry.id, [])
        if not cells:
            return {"state": REPLACED, "n_cells": 0, "n_applied": 0, "applied_s": None}
        times = list(self._applied_times(cells))
        is_whole = len(times) == len(cells)
        state = APPLIED if is_whole else WAITING
        if not is_whole and self.job()["state"] != "reads":
            state = NOT_READ
        return {
            "state": state,
            "n_cells": len(cells),
            "n_applied": len(times),
            "applied_s": max(times) if is_whole else None,
        }

    @cached_property
    def _in_force(self) -> dict[int, list[str]]:
        """Cells of each version in force."""
        found: dict[int, list[str]] = {}
        free = dict.fromkeys(self.cells)
        for entry in self.entries:
            own = list(free) if entry.subject == ALL_CELLS else [entry.subject]
            found[entry.id] = [cell for cell in own if cell in free]
            for cell in found[entry.id]:
                del free[cell]
        return found

    def _applied_times(self, cells: Iterable[str]) -> Iterable[float]:
        if self.report is None:
            return
        for cell in cells:
            number = change_number(self.thresholds.rules.change_of(cell))
            at_s = self.report.applied_s(cell, number)
            if at_s is not None:
                yield at_s
