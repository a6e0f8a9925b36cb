"""Reviews of readings: doubtful spans that wait for one, decisions, the job's file.

A chief accepts a doubt about readings, rejects it, or marks readings as bad. An
accepted doubt changes no flag and no level. The others are written to a file that the
scoring job reads if ``score.reviews`` names it. A decision is never changed; it is
reverted by an entry of its own in the journal.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from backend_spark.console.audit_log import Journal, JournalDraft, JournalEntry
from backend_spark.console.level_grid import utc_time
from backend_spark.console.previews import ReviewPreview
from backend_spark.i18n import render_both
from backend_spark.scoring.observation import flag_reasons
from backend_spark.scoring.reviews import (
    NEVER_REJECTED,
    ReadingReview,
    ReviewReport,
    ReviewVerdict,
)
from backend_spark.tables.reader import DeltaTables, sql_literal
from service_runtime.decoding import convert
from service_runtime.files import put_in_place, write_beside_if_new
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


DECIDED: Final = "review"
REVERTED: Final = "review_end"


class ReviewEntry(msgspec.Struct, frozen=True):
    """Body of a decision in the journal.

    Attributes:
        node: Id of the node.
        name: Name of the readings.
        from_s: Unix time of the first reading.
        to_s: Unix time of the last one.
        verdict: ``accepted``, ``good`` or ``bad``.
        codes: Codes of the accepted or rejected doubts.
        why: Reason.
        count: Number of readings in the range when it was decided.
        raised_to: Level of 4 or 5 to which it raised the cell, as the preview showed;
            None: it did not.
    """

    node: str
    name: str
    from_s: float
    to_s: float
    verdict: ReviewVerdict
    codes: tuple[str, ...] = ()
    why: str = ""
    count: int = 0
    raised_to: int | None = None

    def review(self, number: int, cell: str, person: str, at_s: float) -> ReadingReview:
        """The decision as scoring reads it."""
        return ReadingReview(
            id=number,
            cell=cell,
            node=self.node,
            name=self.name,
            from_s=self.from_s,
            to_s=self.to_s,
            verdict=self.verdict,
            person=person,
            at_s=at_s,
            codes=self.codes,
        )


class RevertEntry(msgspec.Struct, frozen=True):
    """Body of the entry that reverts a decision.

    Attributes:
        review: Number of the decision's entry.
        why: Reason.
        raised_to: As that of `ReviewEntry`.
    """

    review: int
    why: str
    raised_to: int | None = None


@dataclass(frozen=True)
class ReviewDecision:
    """A decision, with its end if it was reverted.

    Attributes:
        entry: Its entry in the journal.
        body: The body of that.
        end: The entry that reverted it; None: it is in force.
    """

    entry: JournalEntry
    body: ReviewEntry
    end: JournalEntry | None = None

    def review(self) -> ReadingReview:
        """The decision as scoring reads it."""
        entry, end = self.entry, self.end
        made = self.body.review(entry.id, entry.subject, entry.who, entry.at_s)
        if end is None:
            return made
        return replace(made, reverted_s=end.at_s, reverted_by=end.who)

    def state(self, report: ReviewReport | None, path: str) -> dict[str, Any]:
        """Whether the levels contain it.

        Args:
            report: The job's report; None without one.
            path: The console's file.

        Returns:
            ``state``: ``recorded`` (it changes no level), ``not_read``, ``waiting``,
            ``applied``, ``ending`` or ``reverted``; ``applied_s``: Unix time of the
            first pass with it.
        """
        applied = {} if report is None else {a.review.id: a for a in report.applied}
        ours = applied.get(self.entry.id)
        if self.end is not None:
            state = "ending" if ours else "reverted"
        elif self.body.verdict == "accepted":
            state = "recorded"
        elif ours:
            state = "applied"
        else:
            is_read = report is not None and report.path == path
            state = "waiting" if is_read else "not_read"
        return {"state": state, "applied_s": ours.at_s if ours else None}


@dataclass(frozen=True)
class ReviewBook:
    """Decisions in the journal.

    Attributes:
        journal: Stores them.
        path: The file for the job.
        preview: Judges a cell with other decisions.
    """

    journal: Journal
    path: Path
    preview: ReviewPreview
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def decisions(self) -> list[ReviewDecision]:
        """All decisions, newest first."""
        # All of them: one that is left out would end, and change old levels.
        entries = self.journal.read(DECIDED, REVERTED)
        ends = {
            convert(entry.body, RevertEntry).review: entry
            for entry in entries
            if entry.kind == REVERTED
        }
        return [
            ReviewDecision(e, convert(e.body, ReviewEntry), ends.get(e.id))
            for e in entries
            if e.kind == DECIDED
        ]

    def in_force(self) -> list[ReadingReview]:
        """Decisions that were not reverted."""
        return [each.review() for each in self.decisions() if each.end is None]

    def find(self, number: int) -> ReviewDecision | None:
        """Decision with a number that was not reverted; None without."""
        found = (d for d in self.decisions() if d.entry.id == number and d.end is None)
        return next(found, None)

    def add(self, at_s: float, who: str, cell: str, body: ReviewEntry) -> None:
        """Write a decision, and the file for the job."""
        with self._writing:
            entry = msgspec.to_builtins(body)
            self._write(at_s, JournalDraft(DECIDED, cell, who, entry))

    def revert(self, at_s: float, who: str, cell: str, body: RevertEntry) -> bool:
        """Revert a decision; False if another person was faster."""
        with self._writing:
            if self.find(body.review) is None:
                return False
            entry = msgspec.to_builtins(body)
            self._write(at_s, JournalDraft(REVERTED, cell, who, entry))
            return True

    def write_file(self) -> None:
        """Write the file for the job atomically; none without decisions."""
        with self._writing:
            if self._write_beside():
                put_in_place(self.path)

    def _write(self, at_s: float, draft: JournalDraft) -> None:
        # What a full disk refuses must not take effect with the next decision.
        with self.journal.batch():
            self.journal.write_all(at_s, [draft])
            is_new = self._write_beside()
        if is_new:
            put_in_place(self.path)

    def _write_beside(self) -> bool:
        """Write the file beside the one for the job; False if it is the same."""
        reviews = [each.review() for each in reversed(self.decisions())]
        wanted = counting(reviews)
        if not wanted:
            return False  # a file that is missing is one without decisions
        return write_beside_if_new(self.path, msgspec.json.encode(wanted))


def counting(reviews: Sequence[ReadingReview]) -> list[ReadingReview]:
    """Those of some decisions that change flags."""
    return [review for review in reviews if review.verdict != "accepted"]
