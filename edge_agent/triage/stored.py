"""Numbers out of a snapshot, which a damaged card may have changed."""

import math
from typing import Any

Json = Any
"""What `json` reads and writes."""


def number_of(value: object) -> float:
    """A finite number.

    Raises:
        ValueError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, float | int):
        raise ValueError(f"a number is needed, got {value!r}")  # noqa: TRY004 - one kind
    if not math.isfinite(value):
        raise ValueError(f"a finite number is needed, got {value!r}")
    return float(value)


def depth_of(value: object) -> float:
    """A finite number of zero or more.

    Raises:
        ValueError: It is none.
    """
    number = number_of(value)
    if number < 0:
        raise ValueError(f"a number of zero or more is needed, got {value!r}")
    return number


def time_of(value: object) -> float | None:
    """A time, or None for none.

    Raises:
        ValueError: It is neither.
    """
    return None if value is None else number_of(value)


def is_number(value: object) -> bool:
    """Whether a reading's value is a finite number; a truth value is none."""
    if isinstance(value, bool) or not isinstance(value, float | int):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no double holds
        return False


class SnapshotError(ValueError):
    """A snapshot does not restore: it is damaged, or of another version.

    Attributes:
        reason: What is wrong with it.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"triage snapshot must be one of this version: {reason}")
