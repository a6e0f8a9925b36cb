"""Changes of criteria that the scoring job has applied, cell by cell.

The job writes the file; the console compares it with the versions that a chief saved,
so that a version that never reaches the levels does not look like one that did.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from backend_spark.criteria.cell_rules import CellRuleProvider
from backend_spark.criteria.tables import CriteriaRow
from service_runtime.files import read_json_or, write_best_effort

APPLIED_FILE: Final = "criteria-applied.json"
NO_CHANGE: Final = 0


def change_number(row: CriteriaRow | None) -> int:
    """Number of a change, which differs between changes; `NO_CHANGE` without one."""
    return NO_CHANGE if row is None else zlib.crc32(repr(row).encode()) or 1


class AppliedReport(msgspec.Struct, frozen=True):
    """What the job applies.

    Attributes:
        changes: Absolute path of its setting ``criteria.changes``; None without.
        cells: Number of the change with which each cell was last scored, and the Unix
            time of the first pass with it; cells that never had one are left out.
    """

    changes: str | None
    cells: dict[str, tuple[int, float]] = {}

    def applied_s(self, cell: str, number: int) -> float | None:
        """Unix time since when a cell is scored with a change; None: it is not yet.

        0 for a cell without a change that never had one.
        """
        found, at_s = self.cells.get(cell, (NO_CHANGE, 0.0))
        return at_s if found == number else None


def read_applied(data: Path) -> AppliedReport | None:
    """The job's report in a data folder; None if there is none that can be read."""
    return read_json_or(data / APPLIED_FILE, AppliedReport, None)


@dataclass
class AppliedChanges:
    """The job's side: what its passes applied.

    Attributes:
        data: The data folder.
        rules: Rules of cells.
        clock: Unix time.
    """

    data: Path
    rules: CellRuleProvider
    clock: Callable[[], float]
    _cells: dict[str, tuple[int, float]] = field(default_factory=dict)
    _is_new: bool = True

    def __post_init__(self) -> None:
        """Go on from the report of the last run."""
        known = read_applied(self.data)
        if known is not None:
            self._cells = dict(known.cells)

    def numbers(self, cells: Iterable[str]) -> Mapping[str, int]:
        """Changes with which a pass that begins now scores cells.

        Cells without a change that never had one are left out.
        """
        if self.rules.current_table().changes is None and not self._cells:
            return {}
        found = ((cell, change_number(self.rules.change_of(cell))) for cell in cells)
        return {c: n for c, n in found if n != NO_CHANGE or c in self._cells}

    def add(self, numbers: Mapping[str, int]) -> None:
        """Add what a pass applied, once its levels are written."""
        now_s = self.clock()
        for cell, number in numbers.items():
            if self._cells.get(cell, (None, 0.0))[0] != number:
                self._cells[cell] = number, now_s
                self._is_new = True

    def save(self) -> None:
        """Write the report if it is new; if that fails, the next call tries again."""
        if not self._is_new:
            return
        source = self.rules.changes
        changes = None if source is None else str(source.absolute())
        text = json.dumps({"changes": changes, "cells": self._cells})
        path = self.data / APPLIED_FILE
        self._is_new = not write_best_effort(path, text.encode())
