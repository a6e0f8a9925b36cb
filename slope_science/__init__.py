"""Formulas for slopes, pure functions with their sources, and their error.

A node's triage, the backend's score and the simulated hillslope must agree on
what "level 4" means, so the formulas live here once, and import nothing.
"""

from datetime import timedelta, timezone
from typing import Final

JST: Final = timezone(timedelta(hours=9))
"""Japan Standard Time: the time of Japanese sentences, tables and official data."""


class ScienceError(ValueError):
    """An input for which the formula has no meaning.

    Attributes:
        field: Name of the input.
        rule: What it must be.
        value: What was given.
        remedy: What to do; None when the rule implies it.
    """

    def __init__(
        self, field: str, rule: str, value: object, remedy: str | None = None
    ) -> None:
        self.field = field
        self.rule = rule
        self.value = value
        self.remedy = remedy
        super().__init__(f"{field} must be {rule}, got {value!r}")
