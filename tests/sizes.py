"""The two sizes of a test: short for `make test`, long for `make test-long`."""

from typing import Any

import pytest


def sizes(short: object, long: object) -> list[Any]:
    """Values of a parameter or a fixture: the short one and the one marked ``long``."""
    return [
        pytest.param(short, id="short"),
        pytest.param(long, id="long", marks=pytest.mark.long),
    ]
