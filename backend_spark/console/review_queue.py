"""Doubtful readings that no person has judged yet, as spans of one sensor and doubt."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from backend_spark.console.panels import utc_time
from backend_spark.i18n import render_both
from backend_spark.scoring.observation import flag_reasons
from backend_spark.scoring.reviews import NEVER_REJECTED, ReadingReview
from backend_spark.tables.reader import DeltaTables, sql_literal
from slope_science.quality import Flag
from slope_science.reasons import Reason

MAX_READINGS: Final = 10_000
"""Newest doubtful readings that are read at once."""

MAX_SPANS: Final = 200
SPAN_GAP_S: Final = 3600.0
"""Time without such a reading after which another span begins."""

_COLUMNS: Final = ("node", "name", "cell", "unit", "value", "at", "flag", "flag_why")
_MICRO: Final = 1_000_000


@dataclass
class FlaggedSpan:
    """Doubtful readings of one sensor in a row, with the same flag and doubts.

    Attributes:
        cell: Token of the cell.
        node: Id of the node.
        name: Name of the readings.
        unit: Their unit.
        flag: 3 suspect, 4 failed.
        codes: Codes of the doubts.
        reasons: The doubts of the newest reading.
        from_s: Unix time of the first reading.
        to_s: Unix time of the last one.
        count: Number of readings.
        low: Lowest value; None without one, as a counter has none.
        high: Highest value.
    """

    cell: str
    node: str
    name: str
    unit: str | None
    flag: int
    codes: tuple[str, ...]
    reasons: tuple[Reason, ...]
    from_s: float
    to_s: float
    count: int = 0
    low: float | None = None
    high: float | None = None

    def add(self, at_s: float, value: float | None) -> None:
        """Add an earlier reading."""
        self.from_s, self.count = at_s, self.count + 1
        if value is not None:
            self.low = value if self.low is None else min(self.low, value)
            self.high = value if self.high is None else max(self.high, value)

    def to_json(self, level: int) -> dict[str, Any]:
        """For the page.

        Args:
            level: Present level of the cell.
        """
        numbers = {n: getattr(self, n) for n in ("low", "high")}
        return {
            **{n: getattr(self, n) for n in ("cell", "node", "name", "unit", "flag")},
            **{n: getattr(self, n) for n in ("codes", "from_s", "to_s", "count")},
            **{n: None if v is None else round(v, 4) for n, v in numbers.items()},
            "reasons": render_both(self.reasons),
            "level": level,
        }


def read_flagged(tables: DeltaTables, since_s: float) -> list[dict[str, Any]]:
    """The newest doubtful readings since a Unix time, newest first."""
    flags = f"flag IN ({int(Flag.SUSPECT)}, {int(Flag.FAIL)})"
    wanted = [flags, "cell IS NOT NULL", f"at >= {sql_literal(utc_time(since_s))}"]
    limit = MAX_READINGS, 0
    rows = tables.select("silver", _COLUMNS, wanted, "at DESC, node, name", limit)
    times = [at_us / _MICRO for at_us in rows["at"].cast("int64").to_pylist()]
    return [
        row | {"at_s": at_s} for row, at_s in zip(rows.to_pylist(), times, strict=True)
    ]


def find_spans(
    rows: Iterable[dict[str, Any]], reviews: Sequence[ReadingReview]
) -> list[FlaggedSpan]:
    """Spans of the readings that no review in force judges, newest first.

    Args:
        rows: Result of `read_flagged`.
        reviews: Those in force.
    """
    decided: dict[tuple[str, str], list[ReadingReview]] = {}
    for review in reviews:
        decided.setdefault((review.node, review.name), []).append(review)
    open_spans: dict[tuple[object, ...], FlaggedSpan] = {}
    spans: list[FlaggedSpan] = []
    for row in rows:
        reasons = flag_reasons(row["flag_why"])
        codes = tuple(sorted({str(reason.code) for reason in reasons}))
        known = decided.get((row["node"], row["name"]), ())
        at_s = row["at_s"]
        if not NEVER_REJECTED.isdisjoint(codes) or _is_judged(at_s, codes, known):
            continue
        names = ("cell", "node", "name", "unit", "flag")
        key = (*(row[name] for name in names), codes)
        span = open_spans.get(key)
        if span is None or span.from_s - at_s > SPAN_GAP_S:
            same = {name: row[name] for name in names}
            span = FlaggedSpan(
                **same, codes=codes, reasons=reasons, from_s=at_s, to_s=at_s
            )
            open_spans[key] = span
            spans.append(span)
        span.add(at_s, row["value"])
    return spans


def _is_judged(
    at_s: float, codes: Sequence[str], reviews: Iterable[ReadingReview]
) -> bool:
    return any(
        review.covers(at_s)
        and (review.verdict == "bad" or set(codes) <= set(review.codes))
        for review in reviews
    )


def most_urgent(
    spans: Iterable[FlaggedSpan], levels: dict[str, int]
) -> Iterator[dict[str, Any]]:
    """Spans for the page: those of the cells with the highest level, then the newest.

    Args:
        spans: The spans.
        levels: Present level by cell, held or not; 0 is unknown.
    """
    found = [(levels.get(span.cell, 0), span) for span in spans]
    found.sort(key=lambda each: (-each[0], -each[1].to_s))
    yield from (span.to_json(level) for level, span in found[:MAX_SPANS])
