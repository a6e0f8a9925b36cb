"""Topic aliases: a topic that comes again costs three bytes instead of thirty. No I/O.

One table for one connection, in one direction: both ends forget it with the
connection. The publication that defines an alias must be written before any that
uses it.

Source: MQTT 5.0 section 3.3.2.3.4.
"""

from collections import OrderedDict

WORTH_BYTES = 6
"""A shorter topic is hardly longer than its alias."""

REMEMBERED = 8
"""Topics seen once that are remembered, for each alias that there is."""


class TopicAliases:
    """Gives aliases to topics that come again.

    Args:
        most: Aliases that the receiver allows; 0 is none.
    """

    def __init__(self, most: int = 0) -> None:
        self._most = most
        self._aliases: dict[str, int] = {}
        self._last_used: OrderedDict[str, int] = OrderedDict()
        self._count = 0

    def shorten(self, topic: str) -> tuple[str, int | None]:
        """What to publish on instead of a topic.

        Returns:
            Topic and alias: both to define the alias, an empty topic to use it,
            no alias to do without.
        """
        if self._most == 0 or len(topic) < WORTH_BYTES:
            return topic, None
        self._count += 1
        has_come_before = topic in self._last_used
        self._last_used[topic] = self._count
        self._last_used.move_to_end(topic)
        if topic in self._aliases:
            return "", self._aliases[topic]
        if has_come_before and (alias := self._free_alias()) is not None:
            self._aliases[topic] = alias
            return topic, alias
        self._forget_oldest()
        return topic, None

    def _free_alias(self) -> int | None:
        """An alias nobody has, or that of a topic that stayed away for long."""
        if len(self._aliases) < self._most:
            return len(self._aliases) + 1
        oldest = min(self._aliases, key=self._last_used.__getitem__)
        if self._count - self._last_used[oldest] < self._most * REMEMBERED:
            return None  # to define them in turn would cost more than it saves
        return self._aliases.pop(oldest)

    def _forget_oldest(self) -> None:
        while len(self._last_used) > self._most * REMEMBERED:
            oldest = next(t for t in self._last_used if t not in self._aliases)
            del self._last_used[oldest]
