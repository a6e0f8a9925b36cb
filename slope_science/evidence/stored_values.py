"""Stored state of rules as JSON values, and checks of its numbers."""

import math
from typing import Any

Json = Any
"""Value that `json` reads and writes."""


def finite_number(value: object) -> float:
    """Check for a finite number.

    Raises:
        ValueError: The value is none.
    """
    if isinstance(value, bool) or not isinstance(value, float | int):
        raise ValueError(f"a number is needed, got {value!r}")  # noqa: TRY004 - one kind
    if not math.isfinite(value):
        raise ValueError(f"a finite number is needed, got {value!r}")
    return float(value)


def non_negative_number(value: object) -> float:
    """Check for a finite number of zero or more.

    Raises:
        ValueError: The value is none.
    """
    number = finite_number(value)
    if number < 0:
        raise ValueError(f"a number of zero or more is needed, got {value!r}")
    return number


def optional_time(value: object) -> float | None:
    """Check for a time or None.

    Raises:
        ValueError: The value is neither.
    """
    return None if value is None else finite_number(value)


def is_finite_number(value: object) -> bool:
    """Whether a value is a finite number; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, float | int):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer too large for a double
        return False
