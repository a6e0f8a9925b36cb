"""Errors that every package can raise: the base class, fields, TLS files and locks."""

from pathlib import Path
from reprlib import Repr
from typing import Final

MAX_SHOWN_CHARS = 80
MAX_SHOWN_PATH_CHARS: Final = MAX_SHOWN_CHARS - len("''")


class YamamoriError(Exception):
    """Base of every error this package raises."""


class FieldError(YamamoriError, ValueError):
    """A value breaks the rule of its field.

    Attributes:
        field: Name of the field.
        rule: What the value must be, phrased to follow "must be".
        value: The value that was given.
        remedy: What to do; None when the rule implies it.
    """

    def __init__(
        self, field: str, rule: str, value: object, remedy: str | None = None
    ) -> None:
        self.field = field
        self.rule = rule
        self.value = value
        self.remedy = remedy
        shown = shortened(value)
        tail = f"; {remedy}" if remedy else ""
        super().__init__(f"{field} must be {rule}, got {shown}{tail}")


_SHORT: Final = Repr()
_SHORT.maxlevel = 3
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = MAX_SHOWN_CHARS
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = _SHORT.maxset = 10


def shortened(value: object) -> str:
    """A value as one short line; the value may come from a hostile peer.

    The text of a large value is never made as a whole: it takes longer than decoding.
    An absolute path keeps its end, the name of the file.
    """
    if isinstance(value, str) and value.startswith("/"):
        if len(value) > MAX_SHOWN_PATH_CHARS:
            value = "..." + value[3 - MAX_SHOWN_PATH_CHARS :]
    elif isinstance(value, (str, bytes)):
        value = value[: MAX_SHOWN_CHARS + 1]
    try:
        is_container = isinstance(value, (list, tuple, dict, set, frozenset))
        shown = _SHORT.repr(value) if is_container else repr(value)
    except ValueError:  # an integer with too many digits for repr
        return f"an unprintable {type(value).__name__}"
    return (
        shown if len(shown) <= MAX_SHOWN_CHARS else shown[: MAX_SHOWN_CHARS - 3] + "..."
    )


class TlsFileError(YamamoriError, OSError):
    """A file of a TLS link cannot be used.

    Attributes:
        field: Settings key of the file.
        path: Path of the file.
        reason: Why it cannot be used.
    """

    def __init__(self, field: str, path: str, reason: str) -> None:
        self.field = field
        self.path = path
        self.reason = reason
        super().__init__(f"{field} {path!r} cannot be used: {reason}")


class AlreadyRunningError(YamamoriError, RuntimeError):
    """Another process uses the same data folder under the same name.

    Attributes:
        path: The lock file.
    """

    def __init__(
        self, path: Path, remedy: str = "stop it, or choose another id and data folder"
    ) -> None:
        self.path = path
        super().__init__(f"cannot start while another process holds {path}; {remedy}")
