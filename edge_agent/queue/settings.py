"""Settings of a queue, shared by nodes and gateways."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from edge_agent.queue.base import ExpiryPolicy
from edge_agent.queue.eviction import Budget
from service_runtime.errors import FieldError
from service_runtime.settings import KeyRule, key
from spatial_mqtt.priority import LADDER

Number = TypeVar("Number", int, float)


def check_per_priority(values: tuple[float, ...]) -> None:
    """Check for one non-negative number per priority.

    Raises:
        FieldError: The count is wrong, or a number is negative.
    """
    if len(values) != LADDER.top or min(values) < 0:
        rule = f"{LADDER.top} numbers from 0 up, for priorities 1 to {LADDER.top}"
        raise FieldError("value", rule, list(values))


@dataclass(frozen=True)
class BaseQueueSection:
    """Settings in ``[queue]`` that every queue has."""

    max_bytes: int = key(
        KeyRule("Budget of the queue.", "bytes", low=10_000, high=1e12), 200_000_000
    )
    max_bytes_of: tuple[int, ...] = key(
        KeyRule(
            "Budgets of priorities 1 to 5 within it; 0 is no separate limit.",
            "bytes",
            check=check_per_priority,
        ),
        (0,) * LADDER.top,
    )
    ttl_s: tuple[float, ...] = key(
        KeyRule(
            "Maximum age of messages of priorities 1 to 5; 0 is no limit. Expired "
            "messages are dropped and counted.",
            "s",
            check=check_per_priority,
        ),
        (0.0,) * LADDER.top,
    )

    def budget(self) -> Budget:
        """Limits in bytes."""
        return Budget(self.max_bytes, by_priority=_nonzero(self.max_bytes_of))

    def expiry_policy(self, mono_s: Callable[[], float]) -> ExpiryPolicy:
        """Maximum age of messages.

        Args:
            mono_s: Monotonic seconds since the machine started.
        """
        return ExpiryPolicy(mono_s, _nonzero(self.ttl_s))


def _nonzero(values: tuple[Number, ...]) -> dict[int, Number]:
    return {p: value for p, value in enumerate(values, start=1) if value}
