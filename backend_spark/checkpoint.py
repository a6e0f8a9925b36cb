"""Spark's checkpoint, so kept that a loss of power is no more than a kill.

Spark never calls fsync. Which segments a batch reads is chosen once, in the file
``offsets/N``: planned anew, it would read more, and a table that has batch N would
skip what came to it.
"""

import json
import logging
from pathlib import Path
from typing import Final

from backend_spark.durability import fsync_file, fsync_folder

log = logging.getLogger(__name__)

METADATA: Final = "metadata"
_LINES: Final = {"offsets": 3, "commits": 2}
"""Version, settings and offset; version and settings."""


def keep_plan(checkpoint: Path, batch_id: int) -> None:
    """Make the plan of a batch survive, before any table has a row of the batch."""
    plan = checkpoint / "offsets" / str(batch_id)
    for path in (checkpoint / METADATA, plan):
        for file in (path, _checksum(path)):
            if file.exists():
                fsync_file(file)
        fsync_folder(path.parent)


def mend(checkpoint: Path) -> list[Path]:
    """Remove what a loss of power left without its end; Spark would not start.

    No table has a row of a batch whose plan is torn (`keep_plan`), and a batch whose
    end is not told is run again and found to be done.
    """
    torn = []
    for folder, lines in _LINES.items():
        for path in _newest_first(checkpoint / folder):
            # Ours is the check of these; a torn checksum would condemn a whole file.
            _checksum(path).unlink(missing_ok=True)
            if _is_whole(path, lines):
                break
            torn.append(path)
    metadata, plans = checkpoint / METADATA, _newest_first(checkpoint / "offsets")
    has_begun = any(_newest_first(checkpoint / "commits")) or len(plans) > 1
    if metadata.exists() and not has_begun and not _is_whole(metadata, 1):
        torn += [metadata, _checksum(metadata), *plans]
    for path in dict.fromkeys(torn):
        log.warning("%s is torn by a loss of power, and removed", path)
        path.unlink(missing_ok=True)
        fsync_folder(path.parent)
    return torn


def _newest_first(folder: Path) -> list[Path]:
    numbered = [path for path in folder.glob("*") if path.name.isdigit()]
    return sorted(numbered, key=lambda path: int(path.name), reverse=True)


def _is_whole(path: Path, lines: int) -> bool:
    """Whether the last of so many lines is JSON to its end."""
    told = path.read_text(encoding="utf-8", errors="replace").splitlines()
    try:
        return len(told) >= lines and bool(json.loads(told[-1]))
    except json.JSONDecodeError:
        return False


def _checksum(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")
