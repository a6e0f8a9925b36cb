"""Decisions about readings: the entries of the journal, and the file for the job.

A chief accepts a doubt about readings, rejects it, or marks readings as bad. An
accepted doubt changes no flag and no level. The others are written to a file that the
scoring job reads if ``score.reviews`` names it. A decision is never changed; it is
reverted by an entry of its own.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from backend_spark.console.audit_log import Journal, JournalDraft, JournalEntry
from backend_spark.console.previews import ReviewPreview
from backend_spark.scoring.applied_reviews import ReviewReport
from backend_spark.scoring.reviews import ReadingReview, ReviewVerdict
from service_runtime.decoding import convert
from service_runtime.files import put_in_place, write_beside_if_new

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
