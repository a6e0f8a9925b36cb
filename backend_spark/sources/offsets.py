"""How far a reader of the log has come: pure arithmetic on names of segments.

An offset is ``{stream: sequence of its last segment}``. Spark compares offsets as
JSON text, so keys are sorted; it accepts one that goes backwards in silence, so
every step is clamped.
"""

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from backend_spark.ingest.log import SegmentName

Offset = dict[str, int]


def newest(names: Iterable[SegmentName]) -> Offset:
    """The offset at which all these segments are read."""
    offset: Offset = {}
    for name in names:
        offset[name.stream] = max(name.seq, offset.get(name.stream, name.seq))
    return dict(sorted(offset.items()))


def between(
    names: Iterable[SegmentName], start: Offset, end: Offset
) -> list[SegmentName]:
    """Segments after one offset up to another, streams taking turns.

    Taking turns keeps one ingester's backlog from holding up another's alarm.
    """
    streams: dict[str, list[SegmentName]] = {}
    for name in sorted(names):
        if start.get(name.stream, -1) < name.seq <= end.get(name.stream, -1):
            streams.setdefault(name.stream, []).append(name)
    rounds = zip_longest(*streams.values())
    return [name for turn in rounds for name in turn if name is not None]


def advance(start: Offset, read: Iterable[SegmentName]) -> Offset:
    """The offset after some more segments; never behind the start."""
    reached = newest(read)
    streams = sorted(start.keys() | reached.keys())
    return {s: max(start.get(s, -1), reached.get(s, -1)) for s in streams}


def groups(
    names: Sequence[SegmentName], size_bytes: int, at_most: int, fewest_bytes: int
) -> list[list[SegmentName]]:
    """Share segments out to tasks.

    Args:
        names: Segments to read.
        size_bytes: Of all of them.
        at_most: Most tasks.
        fewest_bytes: A task is not worth starting for fewer bytes than this.
    """
    worth = max(1, size_bytes // fewest_bytes)
    count = min(at_most, len(names), worth)
    return [list(names[i::count]) for i in range(count)]
