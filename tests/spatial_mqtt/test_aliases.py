"""Topic aliases: the receiver can resolve them, and their number is limited."""

import random

from spatial_mqtt.paho_client import REMEMBERED_PER_ALIAS, TopicAliases


class Receiver:
    """Resolves aliases like a receiver according to MQTT 5."""

    def __init__(self, max_aliases: int) -> None:
        self._max_aliases = max_aliases
        self._topics: dict[int, str] = {}

    def topic(self, topic: str, alias: int | None) -> str:
        if alias is None:
            return topic
        assert 1 <= alias <= self._max_aliases
        if topic:
            self._topics[alias] = topic
        return self._topics[alias]


def test_repeated_topic_is_shortened() -> None:
    """The second use defines the alias; the third sends only the alias."""
    aliases = TopicAliases(10)

    sent = [aliases.shorten("/forward/1/2/pri5") for _ in range(3)]

    assert sent == [
        ("/forward/1/2/pri5", None),
        ("/forward/1/2/pri5", 1),
        ("", 1),
    ]


def test_receiver_without_aliases_gets_none() -> None:
    """A Topic Alias Maximum of 0, or an absent one, forbids aliases."""
    aliases = TopicAliases(0)

    assert {aliases.shorten("/forward/1/2") for _ in range(5)} == {
        ("/forward/1/2", None)
    }


def test_every_topic_can_be_resolved() -> None:
    """For topics in any order the receiver resolves the right one."""
    rng = random.Random(7)
    for max_aliases in (1, 3, 10):
        aliases, receiver = TopicAliases(max_aliases), Receiver(max_aliases)
        for _ in range(5000):
            topic = f"/topic/{int(rng.expovariate(0.2))}"
            assert receiver.topic(*aliases.shorten(topic)) == topic


def test_unused_topic_loses_its_alias() -> None:
    """Aliases follow the topics that are in use."""
    aliases = TopicAliases(1)
    for _ in range(2):
        aliases.shorten("/topic/old")
    for n in range(REMEMBERED_PER_ALIAS):
        aliases.shorten(f"/topic/{n}")
    sent = [aliases.shorten("/topic/new") for _ in range(3)]

    assert sent[-1] == ("", 1)


def test_alternating_topics_do_not_replace_each_others_aliases() -> None:
    """With more topics than aliases, redefining them in turn would cost bytes."""
    aliases = TopicAliases(2)
    sent = [aliases.shorten(f"/topic/{n % 5}") for n in range(500)]

    assert sum(1 for topic, alias in sent if topic and alias) == 2
