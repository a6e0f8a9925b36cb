"""Ranges of numbers: where nobody need look again."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class Ranges:
    """Numbers from 1 up as few ranges; those that touch become one."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        """How many ranges there are."""
        return len(self._starts)

    def __contains__(self, number: int) -> bool:
        """Whether a number lies in a range."""
        at = bisect_right(self._starts, number)
        return at > 0 and number <= self._ends[at - 1]

    @property
    def top(self) -> int:
        """The highest number in a range, or 0."""
        return self._ends[-1] if self._ends else 0

    def add(self, start: int, end: int) -> None:
        """Cover the numbers from start to end, both included."""
        first = bisect_left(self._ends, start - 1)
        last = bisect_right(self._starts, end + 1)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def below(self, number: int) -> int:
        """Highest end of the ranges that begin below a number, or 0."""
        at = bisect_left(self._starts, number)
        return self._ends[at - 1] if at else 0

    def above(self, number: int) -> int | None:
        """Lowest start of the ranges that begin above a number, or None."""
        at = bisect_right(self._starts, number)
        return self._starts[at] if at < len(self._starts) else None

    def gaps(self, newest: bool) -> Iterator[tuple[int, int | None]]:
        """Numbers beside each gap, from one end; None when it has no upper end.

        The caller may close a gap that it was given before it asks for the next.
        """
        if newest:
            yield from self._gaps_down()
        else:
            yield from self._gaps_up()

    def keep(self, numbers: Iterable[int]) -> None:
        """Forget the ranges that hold none of these numbers."""
        places = {bisect_right(self._starts, number) - 1 for number in numbers}
        kept = sorted(at for at in places if at >= 0)
        self._starts = [self._starts[at] for at in kept]
        self._ends = [self._ends[at] for at in kept]

    def _gaps_up(self) -> Iterator[tuple[int, int | None]]:
        after = self.below(2)
        while (before := self.above(after)) is not None:
            yield after, before
            after = self.below(before + 1)
        yield after, None

    def _gaps_down(self) -> Iterator[tuple[int, int | None]]:
        before: int | None = None
        at = len(self._starts)
        while at > 0:
            yield self._ends[at - 1], before
            # Closing this gap joined two ranges into the lower one.
            at = min(at, len(self._starts))
            before = self._starts[at - 1]
            at -= 1
        if before is None or before > 1:
            yield 0, before
