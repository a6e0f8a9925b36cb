"""How long the crash tests are, and what they measured.

``SOAK=long`` gives the long form; ``SOAK_ROUNDS``, ``SOAK_SEED`` and ``SOAK_REPORT``
(a file) set the rest.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Broker
from soak.rig import Rig


@dataclass(frozen=True)
class Scale:
    """How much of everything.

    Attributes:
        rounds: Kills.
        flaps: Times that the link is cut.
        damages: Damaged queue files.
        is_long: Whether this is the long form.
    """

    rounds: int
    flaps: int
    damages: int
    is_long: bool


@pytest.fixture
def scale() -> Scale:
    """The short form, or the long one."""
    if os.environ.get("SOAK") != "long":
        return Scale(rounds=6, flaps=8, damages=30, is_long=False)
    rounds = int(os.environ.get("SOAK_ROUNDS", "200"))
    return Scale(rounds=rounds, flaps=100, damages=300, is_long=True)


@pytest.fixture
def rig(tmp_path: Path, make_broker: Callable[[], Broker]) -> Iterator[Rig]:
    """A system that nothing is started of but its brokers."""
    made = Rig(tmp_path, make_broker(), make_broker())
    yield made
    made.stop()
