"""Errors of the backend: one class per condition that a caller can handle.

BackendError
├── RainTableError       also ValueError    a rain table is malformed
├── CalibrationError     also ValueError    days or a file cannot be used
├── CriteriaTableError   also ValueError    a table of criteria breaks a rule
├── ForecastFileError    also ValueError    a forecast file breaks a rule
├── AnalysisFileError    also ValueError    a file of analysed rain breaks a rule
├── PlaceFileError       also ValueError    a file of places breaks a rule
├── TelegramError        also ValueError    a file is not a JMA telegram
├── ExportError          also ValueError    a requested export is not possible
├── SqlError             also ValueError    a query cannot be answered
├── StandardsRequestError  also FieldError a request to an interface is not valid
├── PlotError            also ValueError    a requested plot is not possible
├── SegmentError         also OSError       a log segment cannot be read
├── LogUnavailableError  also OSError       a log does not confirm what is appended
├── BatchAbandonedError  also RuntimeError  a batch must be run again
├── SupersededError      also RuntimeError  another job has claimed the tables
├── UnsharedFolderError  also RuntimeError  an executor does not see a folder
├── UnfinishedReplayError  also RuntimeError  a replay left tables half rebuilt
├── PostgisSetupError    also ValueError    a copy in PostGIS is not set up
├── PostgisUnavailableError  also ConnectionError  its database does not answer
├── DamagedDatabaseError  also ValueError   a database of the console is damaged
├── FullDiskError        also OSError       the console has no space to start
└── BackupError          also ValueError    a backup cannot be made or restored

A data folder that is in use raises `service_runtime.errors.AlreadyRunningError`.
"""

from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Self

from service_runtime.errors import FieldError


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


class _RuleError(BackendError, ValueError):
    """An option, a file or a table breaks a rule.

    Attributes:
        field: What breaks it.
        problem: The text without the remedy, which may name options of a command.
    """

    def __init__(
        self, field: str, rule: str, value: object, remedy: str | None = None
    ) -> None:
        self.field = field
        self.problem = f"{field} must be {rule}, got {value}"
        tail = "" if remedy is None else f"; {remedy}"
        super().__init__(self.problem + tail)


class CalibrationError(_RuleError):
    """Landslide days cannot be calibrated, or a file of a calibration is wrong."""


class _FileRuleError(BackendError, ValueError):
    """A file breaks one rule or more.

    Attributes:
        source: Path of the file.
        problems: One sentence for each mistake, with its line.
    """

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{source}: {each}" for each in self.problems))


class CriteriaTableError(_FileRuleError):
    """A table of criteria breaks one rule or more."""


class ForecastFileError(_FileRuleError):
    """A forecast file breaks one rule or more; none of it was loaded."""


class AnalysisFileError(_FileRuleError):
    """A file of analysed rain or soil water breaks a rule; none of it was loaded."""


class PlaceFileError(_FileRuleError):
    """A file of places breaks one rule or more; none of it was loaded."""


class TelegramError(BackendError, ValueError):
    """A file is not a warning telegram of JMA.

    Attributes:
        source: File name.
    """

    def __init__(self, source: str, problem: str) -> None:
        self.source = source
        super().__init__(f"telegram {source}: {problem}; move it out of the folder")


class ExportError(_RuleError):
    """A requested export is not possible."""

    @classmethod
    def of_writing(cls, field: str, path: Path, error: OSError) -> Self:
        """The error of a file that cannot be written."""
        return cls(field, "writable", str(path), error.strerror or str(error))


class SqlError(BackendError, ValueError):
    """A query on the tables cannot be answered.

    Attributes:
        query: The query.
    """

    def __init__(self, query: str, problem: str, remedy: str) -> None:
        self.query = query
        super().__init__(f"{problem.rstrip()}\n{remedy}")


class StandardsRequestError(BackendError, FieldError):
    """A request to an interface of a standard is not valid, or asks for too much.

    Attributes:
        status: HTTP status of the answer.
    """

    def __init__(
        self,
        field: str,
        rule: str,
        value: object,
        remedy: str | None = None,
        status: int = 400,
    ) -> None:
        super().__init__(field, rule, value, remedy)
        self.status = status

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers of the answer: with status 503, when to send it again."""
        return (
            {"Retry-After": "2"}
            if self.status == HTTPStatus.SERVICE_UNAVAILABLE
            else {}
        )


class PlotError(_RuleError):
    """A requested plot is not possible."""


class SegmentError(BackendError, OSError):
    """A segment of the log cannot be read.

    Attributes:
        path: File of the segment, or its name in a log without files.
    """

    def __init__(self, path: Path | str, reason: str) -> None:
        self.path = path
        remedy = (
            "copy it from a backup into the log under another name, such as "
            "restored.1-0000000000.arrow"
            if isinstance(path, Path)
            else "check the disks of the brokers"
        )
        # A segment that was scored before it was damaged would be scored twice.
        super().__init__(
            f"segment {path} cannot be read: {reason}. If it is named in the table "
            f"rejected, its messages are missing from the tables: {remedy}"
        )


class LogUnavailableError(BackendError, OSError):
    """A log does not confirm what is appended; nothing is acknowledged until then.

    Attributes:
        waiting: Records that are not confirmed.
    """

    def __init__(self, place: str, waiting: int) -> None:
        self.waiting = waiting
        super().__init__(
            f"{place} must confirm records, got no answer for {waiting}; they are "
            "repeated, check the brokers"
        )


class SupersededError(BackendError, RuntimeError):
    """Another job has claimed the tables of this one.

    Attributes:
        table: Folder of a table.
    """

    def __init__(self, table: object) -> None:
        self.table = table
        super().__init__(
            f"{table} was claimed by another job since, though only one may run, on "
            "whatever machine: this one ends; never delete a file .lock-*"
        )


class UnsharedFolderError(BackendError, RuntimeError):
    """An executor does not see a folder of the job.

    Attributes:
        place: The folder.
        machine: Name of the executor's machine.
        cause: What the executor found.
    """

    def __init__(self, place: str, machine: str, cause: str) -> None:
        self.place, self.machine, self.cause = place, machine, cause
        super().__init__(
            f"executors must see {place} as the job does, but one on {machine} does "
            f"not ({cause}); mount the same shared folder at this path on each worker, "
            "give workers the credentials of the store, and run one job only"
        )


class BatchAbandonedError(BackendError, RuntimeError):
    """A batch arrived while the job stops; its checkpoint must not advance."""

    def __init__(self, batch_id: int) -> None:
        self.batch_id = batch_id
        super().__init__(f"cannot run batch {batch_id} while stopping")


class UnfinishedReplayError(BackendError, RuntimeError):
    """A replay was interrupted; silver and gold are incomplete.

    Attributes:
        tables: Folder of the tables.
    """

    def __init__(self, tables: object) -> None:
        self.tables = tables
        super().__init__(
            f"cannot score while a replay of {tables} is unfinished; run "
            "backend-spark replay again, with the same --from and --to or with none"
        )


class PostgisSetupError(_RuleError):
    """The database of a copy in PostGIS, or its service of libpq, is not set up."""


class PostgisUnavailableError(BackendError, ConnectionError):
    """The database of a copy in PostGIS does not answer, or broke off.

    Attributes:
        service: Service of libpq that names it.
    """

    def __init__(self, service: str, reason: str) -> None:
        self.service = service
        line = " ".join(reason.split())
        super().__init__(
            f"the database of service {service} must answer, got: {line}; nothing was "
            "changed, run it again"
        )


class DamagedDatabaseError(BackendError, ValueError):
    """A database of the console is damaged, and only a person can replace it.

    Attributes:
        path: Its file.
    """

    def __init__(self, path: Path, problem: str, loss: str) -> None:
        self.path = path
        super().__init__(
            f"{path} must be an intact database, got: {problem}; stop backend-console, "
            f"move {path.name}, {path.name}-wal and {path.name}-shm to another folder, "
            f"copy data/console/{path.name} of the newest backup to {path}, and start "
            f"it; without a backup start it without the file: {loss}"
        )


class FullDiskError(BackendError, OSError):
    """The console cannot open its files, because their disk is full.

    Attributes:
        folder: Of the files.
    """

    def __init__(self, folder: Path, problem: str) -> None:
        self.folder = folder
        super().__init__(
            f"{folder} must be on a disk with space, got: {problem}; free some (if "
            "there is enough, check the disk by dmesg), then backend-console starts by "
            "itself"
        )


class BackupError(_RuleError):
    """A backup cannot be made or restored."""
