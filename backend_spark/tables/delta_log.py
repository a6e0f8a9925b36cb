"""Log of Delta tables: recovery of its commits, statistics of files, changes of gold.

A commit is durable when `delta_writer.sync_version` has returned; the batch of any
other commit is run again. Some file systems keep the name of such a commit but none of
its bytes, and then no reader can open the table.

Changes of gold between two versions are for what is derived from gold and kept
elsewhere, such as the table ``current``: rows of the files that are new or changed are
added to what there was. By the statistics, readers skip files.
"""

import json
import logging
import math
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from backend_spark.tables.store import Folder, file_names, read_text
from service_runtime.files import file_size, fsync_folder

log = logging.getLogger(__name__)

DELTA_LOG: Final = "_delta_log"
MAX_UNSYNCED_COMMITS: Final = 4
"""Largest number of commits that are made before they are synced."""

_VERSION_DIGITS: Final = 20

_TRIM: Final = re.compile(
    r"at < arrow_cast\('([^']+)', 'Timestamp\(Microsecond, Some\(\"UTC\"\)\)'\)"
)
"""Predicate of a deletion of old rows, as the log has it."""

_STATISTICS_CHARS: Final = 32
"""Longest text in statistics."""


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


def newest_commits(path: Path) -> list[Path]:
    """Files of the commits that may not be synced, newest first."""
    files = (path / DELTA_LOG).glob("*.json")
    commits = (file for file in files if len(file.stem) == _VERSION_DIGITS)
    return sorted(commits, reverse=True)[:MAX_UNSYNCED_COMMITS]


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
    newest = newest_commits(path)
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


@dataclass(frozen=True)
class GoldVersion:
    """Version of gold.

    Attributes:
        number: Number of the version.
        committed_ms: Unix time of its commit; another one means another gold, such as
            one from a backup.
    """

    number: int
    committed_ms: int


@dataclass(frozen=True)
class GoldFile:
    """File of gold.

    Attributes:
        name: Name within the folder of the table.
        written_ms: Unix time at which its rows came into gold; None if they may be
            older than the file.
    """

    name: str
    written_ms: int | None


def version_of(path: Folder, number: int) -> GoldVersion:
    """A version of gold.

    Args:
        path: Folder of gold.
        number: Number of the version.

    Raises:
        FileNotFoundError: The log does not have its commit.
    """
    return GoldVersion(number, int(_read_commit(path, number).info["timestamp"]))


@dataclass(frozen=True)
class _Commit:
    """Actions of one commit of gold."""

    info: dict[str, Any]
    added: Sequence[dict[str, Any]]
    removed: Sequence[dict[str, Any]]

    @property
    def trimmed_until(self) -> datetime | None:
        """Time before which it deletes all rows, and no others; None if it does not."""
        predicate = self.info.get("operationParameters", {}).get("predicate") or ""
        found = _TRIM.fullmatch(predicate)
        if self._operation != "DELETE" or found is None:
            return None
        return datetime.fromisoformat(found.group(1)).replace(tzinfo=UTC)

    @property
    def loses_rows(self) -> bool:
        """Whether rows may be gone for another reason than their age."""
        if self.trimmed_until is not None:
            return False
        metrics = self.info.get("operationMetrics", {})
        mode = self.info.get("operationParameters", {}).get("mode")
        return (
            self._operation not in {"WRITE", "MERGE", "OPTIMIZE"}
            and bool(self.added or self.removed)
        ) or bool(
            mode == "Overwrite"
            or metrics.get("num_target_rows_deleted")
            or (self.removed and not self.added)
        )

    @property
    def _operation(self) -> str:
        return str(self.info.get("operation"))


def _read_commit(path: Folder, number: int) -> _Commit:
    name = f"{DELTA_LOG}/{number:020d}.json"
    info: dict[str, Any] = {}
    added, removed = [], []
    for line in read_text(path, name).splitlines():
        action = json.loads(line)
        info |= action.get("commitInfo", {})
        added += [action["add"]] if "add" in action else []
        removed += [action["remove"]] if "remove" in action else []
    return _Commit(info, added, removed)


@dataclass
class GoldChanges:
    """What gold has gained and lost between two versions.

    Attributes:
        files: Files with rows that are new or changed; those of the later version.
        trimmed_until: Time before which rows were deleted; None if none were.
    """

    files: list[GoldFile] = field(default_factory=list)
    trimmed_until: datetime | None = None


def changes_between(path: Folder, after: int, upto: int) -> GoldChanges | None:
    """Changes after one version up to another; None if only all of gold has them.

    Args:
        path: Folder of gold.
        after: Number of the earlier version.
        upto: Number of the later one.
    """
    files: dict[str, GoldFile] = {}
    trims: list[datetime] = []
    for number in range(after + 1, upto + 1):
        try:
            commit = _read_commit(path, number)
        except FileNotFoundError:
            return None
        if commit.loses_rows:
            return None
        until = commit.trimmed_until
        trims += [] if until is None else [until]
        gone = {each["path"] for each in commit.removed}
        is_rewritten = bool(gone & files.keys())
        files = {name: file for name, file in files.items() if name not in gone}
        for each in commit.added:
            if is_rewritten or (each["dataChange"] and until is None):
                written_ms = None if gone else int(each["modificationTime"])
                files[each["path"]] = GoldFile(each["path"], written_ms)
    return GoldChanges(list(files.values()), max(trims, default=None))


def all_files(levels: DeltaTable) -> list[GoldFile]:
    """All files of gold at its opened version."""
    return [GoldFile(name, None) for name in file_names(levels)]


def statistics_of(rows: pa.Table) -> dict[str, Any]:
    """Statistics of all columns with values that have an order.

    Other readers must be able to filter by any of them: delta-rs (1.6.6) skips every
    file that has no statistics of the column (no level of 4 or more).
    """
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in rows.column_names:
        column = rows[name]
        nulls[name] = column.null_count
        if not _has_order(column.type):
            continue
        ends = pc.min_max(column).as_py()
        if ends["min"] is not None:
            low[name], high[name] = _lower_end(ends["min"]), _upper_end(ends["max"])
    return {
        "numRecords": rows.num_rows,
        "minValues": low,
        "maxValues": high,
        "nullCount": nulls,
    }


def _has_order(kind: pa.DataType) -> bool:
    is_any_of = (
        pa.types.is_boolean,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_timestamp,
    )
    return any(is_one(kind) for is_one in is_any_of)


def _lower_end(value: object) -> object:
    """Lower end in JSON: at most the value."""
    if isinstance(value, datetime):
        return _format_time(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else -sys.float_info.max
    return value[:_STATISTICS_CHARS] if isinstance(value, str) else value


def _upper_end(value: object) -> object:
    """Upper end in JSON: at least the value."""
    if isinstance(value, datetime):
        # Times have milliseconds in the log.
        return _format_time(value + timedelta(microseconds=999))
    if isinstance(value, float):
        return value if math.isfinite(value) else sys.float_info.max
    if isinstance(value, str) and len(value) > _STATISTICS_CHARS:
        return value[:_STATISTICS_CHARS] + chr(sys.maxunicode)
    return value


def _format_time(value: datetime) -> str:
    text = value.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def merge_statistics(groups: Sequence[dict[str, Any]]) -> str:
    """Statistics of all row groups of a file, as Delta's JSON."""
    merged: dict[str, Any] = {"numRecords": sum(each["numRecords"] for each in groups)}
    aggregates: dict[str, Callable[[list[Any]], Any]] = {
        "minValues": min,
        "maxValues": max,
        "nullCount": sum,
    }
    for kind, aggregate in aggregates.items():
        values: dict[str, list[Any]] = {}
        for each in groups:
            for name, value in each[kind].items():
                values.setdefault(name, []).append(value)
        merged[kind] = {name: aggregate(each) for name, each in values.items()}
    return json.dumps(merged)
