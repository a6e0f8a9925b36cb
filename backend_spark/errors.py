"""Errors of the backend: one class per thing a caller can react to.

BackendError
├── RainTableError       also ValueError    a rain table that cannot be read
├── CriteriaTableError   also ValueError    a table of criteria that breaks a rule
├── TelegramError        also ValueError    a file that is no telegram of JMA
├── ForecastFileError    also ValueError    a file of forecasts that breaks a rule
├── ExportError          also ValueError    what is asked for cannot leave the house
├── PlotError            also ValueError    what is asked for cannot be drawn
├── SegmentError         also OSError       a log segment that cannot be read
├── AlreadyRunningError  also RuntimeError  the data folder is in use
├── BatchAbandonedError  also RuntimeError  a batch that must be run again
└── HalfReplayedError    also RuntimeError  tables that a replay left half rebuilt
"""

from collections.abc import Sequence
from pathlib import Path


class BackendError(Exception):
    """Base of every error this package raises."""


class RainTableError(BackendError, ValueError):
    """A rain table breaks a rule.

    Attributes:
        source: File name, or ``standard input``.
    """

    def __init__(self, source: str, problem: str) -> None:
        self.source = source
        super().__init__(f"{source}: {problem}")


class CriteriaTableError(BackendError, ValueError):
    """A table of criteria breaks one rule or more.

    Attributes:
        source: Its file.
        problems: One sentence for each mistake, with its line.
    """

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{source}: {each}" for each in self.problems))


class ForecastFileError(BackendError, ValueError):
    """A file of forecasts breaks one rule or more; none of it was loaded.

    Attributes:
        source: The file.
        problems: One sentence for each mistake, with its line.
    """

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{source}: {each}" for each in self.problems))


class TelegramError(BackendError, ValueError):
    """A file is no warning telegram of JMA.

    Attributes:
        source: Its name.
    """

    def __init__(self, source: str, problem: str) -> None:
        self.source = source
        super().__init__(f"telegram {source}: {problem}; move it out of the folder")


class ExportError(BackendError, ValueError):
    """What is asked for cannot be exported.

    Attributes:
        field: The option or the table.
    """

    def __init__(self, field: str, rule: str, value: str, remedy: str) -> None:
        self.field = field
        super().__init__(f"{field} must be {rule}, got {value}; {remedy}")


class PlotError(BackendError, ValueError):
    """What is asked for cannot be drawn.

    Attributes:
        field: What was given.
    """

    def __init__(self, field: str, rule: str, value: object) -> None:
        self.field = field
        super().__init__(f"{field} must be {rule}, got {value!r}")


class SegmentError(BackendError, OSError):
    """A segment of the log cannot be read.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        super().__init__(
            f"segment {path} cannot be read: {reason}; restore it from a backup, "
            "or move it out of the log and its messages are lost"
        )


class BatchAbandonedError(BackendError, RuntimeError):
    """A batch came in while the job stops; its checkpoint must not move."""

    def __init__(self, batch_id: int) -> None:
        self.batch_id = batch_id
        super().__init__(f"cannot run batch {batch_id} while stopping")


class HalfReplayedError(BackendError, RuntimeError):
    """A replay was cut short; silver and gold are not whole.

    Attributes:
        tables: Folder of the tables.
    """

    def __init__(self, tables: Path) -> None:
        self.tables = tables
        super().__init__(
            f"cannot score while a replay of {tables} is unfinished; run "
            "backend-spark replay again, with the same --from and --to or with none"
        )
