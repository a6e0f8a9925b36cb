"""Reviews of readings on their way to the levels: the console's file, the job's report.

The console writes all reviews to a file, which ``score.reviews`` names. Before a pass
the job compares those in force with those that it has applied: the cells of the
difference are scored again from the first reading of the review, as after a late
reading. The report of what is applied is written at the end of the pass; the console
shows it.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Final

import msgspec

from backend_spark.scoring.reviews import ReadingReview
from backend_spark.scoring.revisions import NewReadings
from service_runtime.decoding import DECODE_ERRORS, decode_json
from service_runtime.files import read_json_or, write_best_effort

log = logging.getLogger(__name__)

REPORT_FILE: Final = "reviews-applied.json"
_MICRO: Final = 1_000_000
_MISSING: Final = (0, 0)
"""In place of the inode and time of a file that is not there."""


class AppliedReview(msgspec.Struct, frozen=True):
    """A review that the levels contain.

    Attributes:
        review: The review.
        at_s: Unix time of the end of the first pass with it.
    """

    review: ReadingReview
    at_s: float


class ReviewReport(msgspec.Struct, frozen=True):
    """What the job applies.

    Attributes:
        path: Absolute path of its setting ``score.reviews``; None without.
        applied: Reviews that the levels contain.
    """

    path: str | None
    applied: tuple[AppliedReview, ...] = ()


def read_report(data: Path) -> ReviewReport | None:
    """The job's report in a data folder; None if there is none that can be read."""
    return read_json_or(data / REPORT_FILE, ReviewReport, None)


@dataclass(frozen=True)
class ReviewChanges:
    """Reviews for a pass.

    Attributes:
        in_force: Those that count.
        begun: Those of them that the levels do not contain yet.
        ended: Those that count no longer, but that the levels still contain.
    """

    in_force: Sequence[ReadingReview] = ()
    begun: Sequence[ReadingReview] = ()
    ended: Sequence[ReadingReview] = ()

    @property
    def has_changes(self) -> bool:
        """Whether cells must be scored again."""
        return bool(self.begun or self.ended)

    def causes(self) -> Iterator[tuple[ReadingReview, NewReadings]]:
        """Reviews whose cells are scored again, with the cause of revisions."""
        for review in self.begun:
            yield review, _cause(review.person, review.at_s)
        for review in self.ended:
            person = review.reverted_by or review.person
            yield review, _cause(person, review.reverted_s or review.at_s)


def _cause(person: str, at_s: float) -> NewReadings:
    return NewReadings(person, round(at_s * _MICRO), is_review=True)


NO_REVIEW_CHANGES: Final = ReviewChanges()


@dataclass
class AppliedReviews:
    """The job's side: the console's file, and what passes have applied.

    Attributes:
        data: The data folder.
        path: The console's file; None: reviews are not read.
        clock: Unix time.
    """

    data: Path
    path: Path | None
    clock: Callable[[], float]
    _known: Sequence[ReadingReview] = ()
    _stamp: tuple[int, int] | None = None
    _applied: dict[int, AppliedReview] = field(default_factory=dict)
    _is_new: bool = True

    def __post_init__(self) -> None:
        """Go on from the report of the last run."""
        report = read_report(self.data)
        if report is not None:
            self._applied = {each.review.id: each for each in report.applied}
            self._known = [each.review for each in report.applied]

    def changes(self, until_us: int | None = None) -> ReviewChanges:
        """Reviews for a pass that begins now.

        Args:
            until_us: Unix time, in microseconds, from which on reviews are not known;
                None: all are.
        """
        now_s = inf if until_us is None else until_us / _MICRO
        known = {review.id: review for review in self._read()}
        in_force = {n: r for n, r in known.items() if r.is_in_force(now_s)}
        begun = [r for n, r in in_force.items() if n not in self._applied]
        ended = [
            known.get(n, applied.review)
            for n, applied in self._applied.items()
            if n not in in_force
        ]
        return ReviewChanges(list(in_force.values()), begun, ended)

    def finish(self, changes: ReviewChanges) -> None:
        """Report what a pass has applied."""
        if changes.has_changes:
            now_s = self.clock()
            self._applied = {
                r.id: self._applied.get(r.id) or AppliedReview(r, now_s)
                for r in changes.in_force
            }
            self._is_new = True
        self.save()

    def save(self) -> None:
        """Write the report if it is new; if that fails, the next call tries again."""
        if not self._is_new:
            return
        path = None if self.path is None else str(self.path.absolute())
        report = ReviewReport(path, tuple(self._applied.values()))
        text = msgspec.json.encode(report)
        self._is_new = not write_best_effort(self.data / REPORT_FILE, text)

    def _read(self) -> Sequence[ReadingReview]:
        """The reviews of the file; without it or if it is damaged, those known last."""
        if self.path is None:
            return ()
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            self._report_missing()
            return self._known
        stamp = (stat.st_ino, stat.st_mtime_ns)
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                body = self.path.read_bytes()
                self._known = decode_json(body, tuple[ReadingReview, ...])
            except (OSError, *DECODE_ERRORS) as error:
                log.error("%s: %s; reviews stay as they were", self.path, error)  # noqa: TRY400
        return self._known

    def _report_missing(self) -> None:
        """Report a file that was lost: one that has had reviews is never deleted."""
        if self._known and self._stamp != _MISSING:
            log.error(
                "%s must be the file of the console, got none; reviews stay as they "
                "were, the console writes it again at its start",
                self.path,
            )
        self._stamp = _MISSING
