"""Reviews: what persons decided about readings, and what a decision does to a flag.

A review names a sensor and a time range. It rejects doubts, or marks readings as bad;
it removes no reading. Scoring flags a reading by its tests first, so that a doubt of
another kind than the rejected ones still counts.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from math import inf
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from backend_spark.scoring.observation import JST, Observation, ReviewMark
from slope_science.quality import GOOD, Flag, Verdict, worst_verdict
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

NEVER_REJECTED: Final = frozenset({
    ReasonCode.CLOCK_IMPLAUSIBLE,
    ReasonCode.NO_NUMBER,
    ReasonCode.MARKED_BAD,
})
"""Reasons of a flag that no review rejects: there is no number, the time is wrong, or
the flag is a review itself, which is reverted."""


ReviewVerdict = Literal["accepted", "good", "bad"]


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
