"""Errors of the formulas."""


class ScienceError(ValueError):
    """An input for which the formula has no meaning.

    Attributes:
        field: Name of the input.
        rule: What it must be.
        value: What was given.
    """

    def __init__(self, field: str, rule: str, value: object) -> None:
        self.field = field
        self.rule = rule
        self.value = value
        super().__init__(f"{field} must be {rule}, got {value!r}")
