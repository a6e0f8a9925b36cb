"""How far scoring has come, read from the checkpoints that Spark leaves.

A checkpoint holds a file ``offsets/N`` for each batch that was planned and a file
``commits/N`` for each that is done. Of an offset file, the first line is its version
and the second its settings; each line after them is the offset of one source.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from backend_spark.durability import fsync_file, fsync_folder
from backend_spark.ingest.log import SegmentName

_HEAD_LINES = 2
_STREAM = re.compile(r".+\.[0-9a-f]+")


def committed(checkpoints: Path) -> dict[str, int]:
    """Sequence of the last segment of each stream that every query has done with.

    Spark never calls fsync. What counts here is on disk when this returns, so that
    no loss of power makes a query ask again for what was removed.

    Returns:
        Nothing for a stream that some query has not begun; empty without queries.
    """
    folders = checkpoints.glob("*/offsets")
    reached = [each for f in folders if (each := _reached(f.parent)) is not None]
    if not reached:
        return {}
    streams = set.intersection(*(set(each) for each in reached))
    return {stream: min(each[stream] for each in reached) for stream in streams}


def unscored(names: Iterable[SegmentName], scored: dict[str, int]) -> int:
    """How many segments some query has not done with; a stream not begun counts whole.

    Messages that come while a query runs make new ones, an urgent message at once: one
    run of ``score --once`` leaves what came since it began.
    """
    return sum(name.seq > scored.get(name.stream, -1) for name in names)


def _reached(checkpoint: Path) -> dict[str, int] | None:
    """Offset of the last batch that is done; None of a query that reads no log."""
    batches = [int(p.name) for p in checkpoint.glob("commits/*") if p.name.isdigit()]
    if not batches:
        return {}
    offset = checkpoint / "offsets" / str(max(batches))
    commit = checkpoint / "commits" / str(max(batches))
    try:
        for path in (offset, commit):
            fsync_file(path)
            fsync_folder(path.parent)
        lines = offset.read_text(encoding="utf-8").splitlines()[_HEAD_LINES:]
        told = [json.loads(line) for line in lines if line.startswith("{")]
    except (FileNotFoundError, json.JSONDecodeError):
        return {}  # Spark is at work on it: next time
    ours = [each for each in told if all(_STREAM.fullmatch(name) for name in each)]
    return ours[0] if ours else None
