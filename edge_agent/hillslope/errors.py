"""Errors of the simulated slope."""


class HillslopeError(Exception):
    """Base of the hillslope's errors."""


class RainFileError(HillslopeError, ValueError):
    """A file of recorded rain cannot be used.

    Attributes:
        path: The file.
        row: Line number in the file, the header being 1; 0 for the whole file.
        column: Name of the column; empty for the whole row.
        rule: What it must be.
        value: What was found.
    """

    def __init__(  # noqa: PLR0917 - one sentence, six words of it
        self, path: str, row: int, column: str, rule: str, value: object, remedy: str
    ) -> None:
        self.path = path
        self.row = row
        self.column = column
        self.rule = rule
        self.value = value
        place = f"{path} row {row}" if row else path
        place += f" column {column!r}" if column else ""
        super().__init__(f"{place} must be {rule}, got {value!r}; {remedy}")
