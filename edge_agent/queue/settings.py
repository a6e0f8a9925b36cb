"""Settings of a queue, the same for a node and for a gateway's lanes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from edge_agent.queue.base import Ageing
from edge_agent.queue.eviction import Budget
from service_runtime.errors import FieldError
from service_runtime.settings import Rule, key
from spatial_mqtt.priority import LADDER

Number = TypeVar("Number", int, float)


def check_each(values: tuple[float, ...]) -> None:
    """Let a number for each priority through.

    Raises:
        FieldError: There are more or fewer, or one is negative.
    """
    if len(values) != LADDER.top or min(values) < 0:
        rule = f"{LADDER.top} numbers from 0 up, for priorities 1 to {LADDER.top}"
        raise FieldError("value", rule, list(values))


@dataclass(frozen=True)
class StoreSection:
    """What ``[queue]`` says of any queue."""

    max_bytes: int = key(
        Rule("Budget of the queue.", "bytes", low=10_000, high=1e12), 200_000_000
    )
    max_bytes_of: tuple[int, ...] = key(
        Rule(
            "Budgets of priorities 1 to 5 within it; 0 is no own bound.",
            "bytes",
            check=check_each,
        ),
        (0,) * LADDER.top,
    )
    ttl_s: tuple[float, ...] = key(
        Rule(
            "How long messages of priorities 1 to 5 are worth sending; 0 is for "
            "ever. What expires is counted as dropped.",
            "s",
            check=check_each,
        ),
        (0.0,) * LADDER.top,
    )

    def budget(self) -> Budget:
        """What the queue may hold."""
        return Budget(self.max_bytes, by_priority=_given(self.max_bytes_of))

    def ageing(self, mono_s: Callable[[], float]) -> Ageing:
        """How old messages may get.

        Args:
            mono_s: Seconds since the machine started.
        """
        return Ageing(mono_s, _given(self.ttl_s))


def _given(values: tuple[Number, ...]) -> dict[int, Number]:
    return {p: value for p, value in enumerate(values, start=1) if value}
