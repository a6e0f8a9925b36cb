"""Sizes of the crash tests, and their fixtures.

`make test` runs the short form, `make test-long` a longer one. ``SOAK=long``, which
`make soak` sets, replaces the short form by one of an hour. ``SOAK_ROUNDS`` sets the
number of kills, ``SOAK_SEED`` the seed, ``SOAK_REPORT`` the file for measurements.
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
    """Size of a run.

    Attributes:
        rounds: Number of kills.
        flaps: Number of link cuts.
        damages: Number of damaged queue files.
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
    """A system of which only the brokers are running."""
    made = Rig(tmp_path, make_broker(), make_broker())
    yield made
    made.stop()
