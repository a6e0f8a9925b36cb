"""The priority ladder: 1 is the least urgent, the top of the ladder the most.

The product ships the five Japanese alert levels. Nothing else in the code
knows how many levels there are, so a ladder of another length is configuration.

Source: P-MQTT (seed 001) leaves the number of levels open; level names follow
the municipal evacuation information in force since 2026-05-29.
"""

from dataclasses import dataclass

from spatial_mqtt.errors import PriorityError


@dataclass(frozen=True)
class Ladder:
    """An ordered ladder of priorities.

    Attributes:
        names: Name of each level, least urgent first.
        default: Priority of a message that carries none.
    """

    names: tuple[str, ...]
    default: int = 1

    @property
    def top(self) -> int:
        """The most urgent priority."""
        return len(self.names)

    def check(self, value: object) -> int:
        """Return ``value`` as a priority of this ladder.

        Raises:
            PriorityError: It is not an integer of the ladder.
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
