"""Reviews: what persons decided about readings, and what a decision does to a flag.

A review names a sensor and a time range. It rejects doubts, or marks readings as bad;
it removes no reading. Scoring flags a reading by its tests first, so that a doubt of
another kind than the rejected ones still counts.

The console writes all reviews to a file, which ``score.reviews`` names. Before a pass
the job compares those in force with those that it has applied: the cells of the
difference are scored again from the first reading of the review, as after a late
reading. The report of what is applied is written at the end of the pass; the console
shows it.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from backend_spark.scoring.observation import Observation, ReviewMark
from backend_spark.scoring.revisions import NewReadings
from service_runtime.decoding import DECODE_ERRORS, decode_json
from service_runtime.files import read_json_or, write_best_effort
from slope_science import JST
from slope_science.quality import GOOD, Flag, Verdict, worst_verdict
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

log = logging.getLogger(__name__)

NEVER_REJECTED: Final = frozenset({
    ReasonCode.CLOCK_IMPLAUSIBLE,
    ReasonCode.NO_NUMBER,
    ReasonCode.MARKED_BAD,
})
"""Reasons of a flag that no review rejects: there is no number, the time is wrong, or
the flag is a review itself, which is reverted."""


ReviewVerdict = Literal["accepted", "good", "bad"]

REPORT_FILE: Final = "reviews-applied.json"
_MICRO: Final = 1_000_000
_MISSING: Final = (0, 0)
"""In place of the inode and time of a file that is not there."""


class ReadingReview(msgspec.Struct, frozen=True):
    """A decision about the readings of a sensor in a time range.

    Attributes:
        id: Number of its entry in the console's journal.
        cell: Token of the cell of the readings.
        node: Id of the node.
        name: Name of the readings, such as ``rain``.
        from_s: Unix time of the first reading.
        to_s: Unix time of the last one.
        verdict: ``good``: the doubts `codes` do not count; ``bad``: the readings do
            not; ``accepted``: the doubts are right, and nothing changes.
        person: Account of the person.
        at_s: Unix time of the decision.
        codes: Codes of the rejected doubts.
        reverted_s: Unix time at which it was reverted; None: it was not.
        reverted_by: Account of the person who reverted it.
    """

    id: int
    cell: str
    node: str
    name: str
    from_s: float
    to_s: float
    verdict: ReviewVerdict
    person: str
    at_s: float
    codes: tuple[str, ...] = ()
    reverted_s: float | None = None
    reverted_by: str = ""

    def is_in_force(self, now_s: float = inf) -> bool:
        """Whether it counts by what was known at a moment."""
        return self.at_s <= now_s and (
            self.reverted_s is None or self.reverted_s > now_s
        )

    def covers(self, at_s: float) -> bool:
        """Whether a reading of that time lies in the range."""
        return self.from_s <= at_s <= self.to_s

    def mark(self) -> ReviewMark:
        """The mark of the readings."""
        day = datetime.fromtimestamp(self.at_s, JST)
        rejected = self.codes if self.verdict == "good" else None
        return ReviewMark(self.person, f"{day:%Y-%m-%d}", rejected)


class ReadingReviews:
    """Reviews in force; of several of a reading the newest counts.

    Args:
        reviews: In any order; accepted doubts mark no reading.
    """

    def __init__(self, reviews: Iterable[ReadingReview] = ()) -> None:
        self._of: dict[tuple[str, str], list[tuple[ReadingReview, ReviewMark]]] = {}
        for review in sorted(reviews, key=lambda each: each.id, reverse=True):
            if review.verdict != "accepted":
                pair = review, review.mark()
                self._of.setdefault((review.node, review.name), []).append(pair)

    def mark(self, observations: Sequence[Observation]) -> list[Observation]:
        """The readings, those with a review marked."""
        if not self._of:
            return list(observations)
        return [self._marked(o) for o in observations]

    def _marked(self, o: Observation) -> Observation:
        known = self._of.get((o.node, o.name), ())
        marks = (mark for review, mark in known if review.covers(o.at_s))
        mark = next(marks, None)
        return o if mark == o.review else replace(o, review=mark)


NO_REVIEWS: Final = ReadingReviews()


def reviewed_verdict(o: Observation, verdicts: Sequence[Verdict]) -> Verdict:
    """The worst verdict of a reading's tests, as its review leaves them."""
    if o.review is None:
        return worst_verdict(verdicts)
    person, day, rejected = o.review.person, o.review.day, o.review.rejected
    if rejected is None:
        reason = Reason(ReasonCode.MARKED_BAD, person=person, day=day)
        return Verdict(Flag.FAIL, (reason,))
    ended = {*rejected, ReasonCode.DOUBT_REJECTED} - NEVER_REJECTED
    is_ended = [bool(v.reasons) and ended.issuperset(_codes(v)) for v in verdicts]
    left = (GOOD if gone else v for v, gone in zip(verdicts, is_ended, strict=True))
    worst = worst_verdict(left)
    if worst.flag is not Flag.GOOD or not any(is_ended):
        return worst
    reason = Reason(ReasonCode.DOUBT_REJECTED, person=person, day=day)
    return Verdict(Flag.GOOD, (reason,))


def _codes(verdict: Verdict) -> set[str]:
    return {str(reason.code) for reason in verdict.reasons}


def is_counted_after_review(o: Observation) -> bool:
    """Whether a reading counts as good because a person rejected its doubts."""
    has_rejected = o.review is not None and o.review.rejected is not None
    return has_rejected and o.flag == Flag.GOOD and bool(o.why)


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
            try:
                body = self.path.read_bytes()
                # Not before: what rights forbid is tried again at the next pass.
                self._stamp = stamp
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
