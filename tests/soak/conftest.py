"""How long the crash tests are, and what they measured.

`make test` runs the short form, `make test-long` a longer one. ``SOAK=long``, which
`make soak` sets, replaces the short form by an hour; ``SOAK_ROUNDS``, ``SOAK_SEED`` and
``SOAK_REPORT`` (a file) set the rest.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Broker
from sizes import sizes
from soak.rig import Rig


@dataclass(frozen=True)
class Scale:
    """How much of everything.

    Attributes:
        rounds: Kills.
        flaps: Times that the link is cut.
        damages: Damaged queue files.
        is_long: Whether this is a long form.
    """

    rounds: int
    flaps: int
    damages: int
    is_long: bool


SHORT = Scale(rounds=3, flaps=4, damages=10, is_long=False)
LONG = Scale(rounds=20, flaps=30, damages=100, is_long=True)


@pytest.fixture(params=sizes(SHORT, LONG))
def scale(request: pytest.FixtureRequest) -> Scale:
    """The short form, a longer one, or that of `make soak`."""
    if os.environ.get("SOAK") == "long":
        rounds = int(os.environ.get("SOAK_ROUNDS", "200"))
        return Scale(rounds=rounds, flaps=100, damages=300, is_long=True)
    made: Scale = request.param
    return made


@pytest.fixture
def rig(tmp_path: Path, make_broker: Callable[[], Broker]) -> Iterator[Rig]:
    """A system that nothing is started of but its brokers."""
    made = Rig(tmp_path, make_broker(), make_broker())
    yield made
    made.stop()
