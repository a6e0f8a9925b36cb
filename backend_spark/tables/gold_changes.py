"""Changes of gold between two of its versions, by the commits of its log.

For what is derived from gold and kept elsewhere, such as the table ``current``: rows of
the files that are new or changed are added to what there was.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from deltalake import DeltaTable

from backend_spark.tables.recovery import DELTA_LOG
from backend_spark.tables.store import Folder, file_names, read_text

_TRIM: Final = re.compile(
    r"at < arrow_cast\('([^']+)', 'Timestamp\(Microsecond, Some\(\"UTC\"\)\)'\)"
)
"""Predicate of a deletion of old rows, as the log has it."""


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
