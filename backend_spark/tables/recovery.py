"""Tables after a loss of power: what was not synced is taken out of their logs.

A commit counts when `commits.sync_version` has returned; nobody was told of one that
did not come so far, and its batch is run again. Some file systems keep the name of
such a commit and none of its bytes, and then no reader opens the table.
"""

import json
import logging
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from service_runtime.files import fsync_folder

log = logging.getLogger(__name__)

LOG: Final = "_delta_log"
MOST_UNSYNCED: Final = 4
"""No piece of work makes more commits than this before it syncs them."""

_VERSION_DIGITS: Final = 20


def mend(path: Path) -> list[str]:
    """Put aside what is torn at the end of a table's log; only its writer may.

    Returns:
        Names of the files of the log that are put aside.
    """
    folder = path / LOG
    torn = _torn_commits(path)
    for checkpoint in sorted(folder.glob("*.checkpoint*.parquet"), reverse=True):
        if _is_parquet(checkpoint):
            break
        torn.append(checkpoint)
    hint = folder / "_last_checkpoint"
    if hint.exists() and not _names_one(hint, torn):
        torn.append(hint)
    for file in torn:
        log.warning("%s is torn by a loss of power, and put aside", file)
        file.rename(file.with_name(f"{file.name}.torn"))
    if torn:
        fsync_folder(folder)
    return [file.name for file in torn]


def newest_commits(path: Path, at_most: int) -> list[Path]:
    """Commits of a table, the newest first."""
    files = (path / LOG).glob("*.json")
    names = (file for file in files if len(file.stem) == _VERSION_DIGITS)
    return sorted(names, reverse=True)[:at_most]


def actions(commit: Path, kind: str) -> list[dict[str, Any]]:
    """Actions of one kind in a commit.

    Raises:
        json.JSONDecodeError: The commit is torn.
    """
    lines = commit.read_text(encoding="utf-8", errors="replace").splitlines()
    told = (json.loads(line) for line in lines)
    return [each[kind] for each in told if kind in each]


def _torn_commits(path: Path) -> list[Path]:
    """From the earliest that is not whole on: a log has no holes."""
    newest = newest_commits(path, MOST_UNSYNCED)
    removed: set[str] = set()
    torn = 0
    for count, commit in enumerate(newest, 1):
        if not _is_whole(path, commit, removed):
            torn = count
    return newest[:torn]


def _is_whole(path: Path, commit: Path, removed: set[str]) -> bool:
    """Whether a commit and its files are there to the last byte."""
    try:
        added = actions(commit, "add")
        removed |= {each["path"] for each in actions(commit, "remove")}
    except json.JSONDecodeError:
        return False
    needed = {each["path"]: each["size"] for each in added}
    sizes = {
        name: (path / name).stat().st_size if (path / name).exists() else 0
        for name in needed.keys() - removed
    }
    is_told = commit.stat().st_size > 0
    return is_told and all(size == needed[name] for name, size in sizes.items())


def _is_parquet(file: Path) -> bool:
    try:
        pq.read_metadata(file)
    except (OSError, pa.ArrowInvalid):
        return False
    return True


def _names_one(hint: Path, torn: list[Path]) -> bool:
    """Whether a hint is whole and its checkpoint is there."""
    try:
        version = json.loads(hint.read_text(encoding="utf-8"))["version"]
    except (json.JSONDecodeError, UnicodeDecodeError):
        return False
    files = set(hint.parent.glob(f"{version:020d}.checkpoint*.parquet"))
    return bool(files - set(torn))
