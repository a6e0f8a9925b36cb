"""Which of several Managers' broker tables counts. No I/O."""

from collections.abc import Hashable

from spatial_mqtt.directory import BrokerTable, encode

TRUST_RECALLED_S = 60.0
"""So long the table of the last run counts beside those that Managers tell."""


class Tables:
    """The last table that each Manager told, and the one of the last run.

    The newest counts: of two with one version (Managers that a partition keeps
    apart) every gateway takes the same. A Manager that lost its registry, and starts
    to count anew, is believed when no other knows better.

    Args:
        managers: How many there are.
        now_s: Monotonic seconds.
    """

    def __init__(self, managers: int, now_s: float) -> None:
        self._managers = managers
        self._recalled_until_s = now_s + TRUST_RECALLED_S
        self._told: dict[Hashable, BrokerTable] = {}
        self._recalled: BrokerTable | None = None

    def recall(self, table: BrokerTable) -> None:
        """The table of the last run."""
        self._recalled = table

    def tell(self, manager: Hashable, table: BrokerTable) -> None:
        """A Manager published a table."""
        self._told[manager] = table

    def of(self, manager: Hashable) -> BrokerTable | None:
        """What a Manager told last."""
        return self._told.get(manager)

    def newest(self, now_s: float) -> BrokerTable | None:
        """The table that counts; None before the first one."""
        tables = list(self._told.values())
        is_early = now_s < self._recalled_until_s and len(tables) < self._managers
        if self._recalled is not None and (is_early or not tables):
            tables.append(self._recalled)
        return max(tables, key=lambda t: (t.version, encode(t)), default=None)
