"""Priority ladder, from 1 (least urgent) to its top, and the QoS policy by priority.

The default ladder has the five Japanese alert levels. No other code depends on the
number of levels, so that another ladder is only configuration.

Source: P-MQTT (seed 001) leaves the number of levels open; level names follow the
municipal evacuation information in force since 2026-05-29.

QoS 1 with message ids and duplicate removal has the effect of exactly-once delivery at
half the round trips of QoS 2, so it is the default. A subscriber gets at most the QoS
that it requests.

Source of the QoS policy: seed 004; MQTT 5.0 section 3.8.4.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from service_runtime.errors import FieldError
from spatial_mqtt.errors import PriorityError


@dataclass(frozen=True)
class Ladder:
    """An ordered ladder of priorities.

    Attributes:
        names: Name of each level, least urgent first.
        default: Priority of a message without one.
        urgent_from: Lowest priority that is urgent: it is written to disk before
            `put` returns, and is sent before everything below.
    """

    names: tuple[str, ...]
    default: int = 1
    urgent_from: int = 4

    @cached_property
    def top(self) -> int:
        """The most urgent priority."""
        return len(self.names)

    def check(self, value: object) -> int:
        """Return ``value`` as a priority of this ladder.

        Raises:
            PriorityError: The value is not an integer on the ladder.
        """
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not 1 <= value <= self.top
        ):
            raise PriorityError(
                "priority", f"an integer between 1 and {self.top}", value
            )
        return value

    def is_urgent(self, priority: int) -> bool:
        """Whether a priority is urgent."""
        return priority >= self.urgent_from

    def routine(self) -> range:
        """Priorities that are not urgent, from the lowest."""
        return range(1, self.urgent_from)

    @cached_property
    def descending(self) -> range:
        """Priorities from the most urgent to the least."""
        return range(self.top, 0, -1)

    def name(self, priority: int) -> str:
        """Name of a priority."""
        return self.names[self.check(priority) - 1]


LADDER = Ladder(
    names=(
        "早期注意情報",  # 1 early attention
        "注意報",  # 2 advisory
        "高齢者等避難",  # 3 evacuation of the elderly
        "避難指示",  # 4 evacuation order
        "緊急安全確保",  # 5 emergency, life in danger
    )
)


@dataclass(frozen=True)
class Delivery:
    """How one message is published.

    Attributes:
        qos: 0, 1 or 2.
        expiry_s: Seconds after which the broker drops the message; None for never.
        retain: Whether the broker keeps it for later subscribers.
    """

    qos: int = 1
    expiry_s: int | None = None
    retain: bool = False

    def __post_init__(self) -> None:
        """Reject values that MQTT does not have."""
        if self.qos not in {0, 1, 2}:
            raise FieldError("qos", "0, 1 or 2", self.qos)
        if self.expiry_s is not None and self.expiry_s < 1:
            raise FieldError("expiry_s", "at least 1 second, or absent", self.expiry_s)


@dataclass(frozen=True)
class QosPolicy:
    """Delivery by priority; QoS 1 for all others.

    Attributes:
        by_priority: Deliveries that differ from the default.
    """

    by_priority: Mapping[int, Delivery] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Reject priorities off the ladder."""
        for priority in self.by_priority:
            LADDER.check(priority)

    def delivery(self, priority: int) -> Delivery:
        """Delivery of a priority."""
        return self.by_priority.get(LADDER.check(priority), _DEFAULT)


_DEFAULT = Delivery()
