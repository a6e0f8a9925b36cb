"""Recovery of Delta tables after a power cut: moves torn commits out of their logs.

A commit is durable when `delta_writer.sync_version` has returned; the batch of any
other commit is run again. Some file systems keep the name of such a commit but none of
its bytes, and then no reader can open the table.
"""

import json
import logging
import math
import shutil
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from service_runtime.files import file_size, fsync_folder

log = logging.getLogger(__name__)

DELTA_LOG: Final = "_delta_log"
MAX_UNSYNCED_COMMITS: Final = 4
"""Largest number of commits that are made before they are synced."""

_VERSION_DIGITS: Final = 20


def recover_table(path: Path) -> list[str]:
    """Rename torn files at the end of a table's log to ``*.torn``.

    Only the writer of the table may call it.

    Returns:
        Names of the renamed files.
    """
    folder = path / DELTA_LOG
    torn = _torn_commits(path)
    # A checkpoint of a torn commit names files that do not exist.
    first_torn = min((_version(commit) for commit in torn), default=math.inf)
    for checkpoint in sorted(folder.glob("*.checkpoint*.parquet"), reverse=True):
        if _version(checkpoint) < first_torn and _is_parquet(checkpoint):
            break
        torn.append(checkpoint)
    hint = folder / "_last_checkpoint"
    if hint.exists() and not _is_valid_hint(hint, torn):
        torn.append(hint)
    for file in torn:
        log.warning("%s was torn by a power cut: renamed to *.torn", file)
        file.rename(file.with_name(f"{file.name}.torn"))
    if torn:
        fsync_folder(folder)
    return [file.name for file in torn]


def discard_damaged(path: Path) -> None:
    """Delete a table that cannot be opened, and whose rows follow from other tables.

    Only the writer of the table may call it.
    """
    if not DeltaTable.is_deltatable(str(path)):
        return
    try:
        DeltaTable(str(path))
    except (DeltaError, OSError) as error:
        log.warning("%s is damaged, and is made anew: %s", path, error)
        shutil.rmtree(path)
        fsync_folder(path.parent)


def newest_commits(path: Path, max_count: int) -> list[Path]:
    """Files of the newest commits of a table, newest first."""
    files = (path / DELTA_LOG).glob("*.json")
    commits = (file for file in files if len(file.stem) == _VERSION_DIGITS)
    return sorted(commits, reverse=True)[:max_count]


def read_actions(commit: Path, kind: str) -> list[dict[str, Any]]:
    """Read the actions of one kind, such as ``add``, from a commit.

    Raises:
        json.JSONDecodeError: The commit is torn.
    """
    lines = commit.read_text(encoding="utf-8", errors="replace").splitlines()
    records = (json.loads(line) for line in lines)
    return [each[kind] for each in records if kind in each]


def _torn_commits(path: Path) -> list[Path]:
    """The earliest incomplete commit and all later ones: a log has no gaps."""
    newest = newest_commits(path, MAX_UNSYNCED_COMMITS)
    removed: set[str] = set()
    torn = 0
    for count, commit in enumerate(newest, 1):
        if not _is_complete(path, commit, removed):
            torn = count
    return newest[:torn]


def _is_complete(path: Path, commit: Path, removed: set[str]) -> bool:
    """Whether a commit and the files that it adds have all their bytes."""
    try:
        added = read_actions(commit, "add")
        removed |= {each["path"] for each in read_actions(commit, "remove")}
    except json.JSONDecodeError:
        return False
    expected = {each["path"]: each["size"] for each in added}
    sizes = {name: file_size(path / name) for name in expected.keys() - removed}
    is_empty = commit.stat().st_size == 0
    return not is_empty and all(sizes[name] == expected[name] for name in sizes)


def _version(file: Path) -> int:
    """Version of the table that a commit or a checkpoint belongs to."""
    return int(file.name[:_VERSION_DIGITS])


def _is_parquet(file: Path) -> bool:
    try:
        pq.read_metadata(file)
    except (OSError, pa.ArrowInvalid):
        return False
    return True


def _is_valid_hint(hint: Path, torn: list[Path]) -> bool:
    """Whether ``_last_checkpoint`` is complete and its checkpoint exists."""
    try:
        version = json.loads(hint.read_text(encoding="utf-8"))["version"]
    except (json.JSONDecodeError, UnicodeDecodeError):
        return False
    files = set(hint.parent.glob(f"{version:020d}.checkpoint*.parquet"))
    return bool(files - set(torn))
