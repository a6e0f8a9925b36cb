"""What the level of each cell is now, from the levels table."""

from collections.abc import Mapping
from datetime import UTC, datetime

import pyarrow.dataset as ds

from backend_spark.tables import Tables

AHEAD_S = 600.0
"""A step is named by its end."""


def current_levels(tables: Tables, now_s: float, max_age_s: float) -> Mapping[str, int]:
    """The newest judgement of each cell, by its token.

    Args:
        tables: The tables.
        now_s: Unix time.
        max_age_s: An older judgement says nothing of now.

    Returns:
        Cells whose newest step has a level; "no judgement" is not among them, and is
        no level 1.
    """
    begin, end = (
        datetime.fromtimestamp(at_s, UTC)
        for at_s in (now_s - max_age_s, now_s + AHEAD_S)
    )
    is_now = (ds.field("at") >= begin) & (ds.field("at") <= end)
    rows = tables.dataset("levels").to_table(
        columns=["cell", "at", "level"], filter=is_now
    )
    newest: dict[str, tuple[datetime, int | None]] = {}
    for row in rows.to_pylist():
        known = newest.get(row["cell"])
        if known is None or row["at"] > known[0]:
            newest[row["cell"]] = row["at"], row["level"]
    return {cell: level for cell, (_, level) in newest.items() if level is not None}
