"""Topic aliases: the receiver can always resolve them, and never gets too many."""

import random

from spatial_mqtt.paho_client import REMEMBERED_PER_ALIAS, TopicAliases


class Receiver:
    """Resolves aliases as MQTT 5 says a receiver does."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._topics: dict[int, str] = {}

    def topic(self, topic: str, alias: int | None) -> str:
        if alias is None:
            return topic
        assert 1 <= alias <= self._most
        if topic:
            self._topics[alias] = topic
        return self._topics[alias]


def test_topic_that_comes_again_is_shortened() -> None:
    """The second use defines the alias, the third is short."""
    aliases = TopicAliases(10)

    told = [aliases.shorten("/forward/1/2/pri5") for _ in range(3)]

    assert told == [
        ("/forward/1/2/pri5", None),
        ("/forward/1/2/pri5", 1),
        ("", 1),
    ]


def test_receiver_that_allows_none_gets_none() -> None:
    """A maximum of 0, or none told, forbids aliases."""
    aliases = TopicAliases(0)

    assert {aliases.shorten("/forward/1/2") for _ in range(5)} == {
        ("/forward/1/2", None)
    }


def test_every_topic_can_be_resolved() -> None:
    """Whatever comes in whatever order, the receiver knows what is meant."""
    rng = random.Random(7)
    for most in (1, 3, 10):
        aliases, receiver = TopicAliases(most), Receiver(most)
        for _ in range(5000):
            topic = f"/topic/{int(rng.expovariate(0.2))}"
            assert receiver.topic(*aliases.shorten(topic)) == topic


def test_topic_of_the_past_gives_its_alias_away() -> None:
    """A gateway's traffic moves on; the aliases follow it."""
    aliases = TopicAliases(1)
    for _ in range(2):
        aliases.shorten("/topic/old")
    for n in range(REMEMBERED_PER_ALIAS):
        aliases.shorten(f"/topic/{n}")
    told = [aliases.shorten("/topic/new") for _ in range(3)]

    assert told[-1] == ("", 1)


def test_topics_in_turn_do_not_chase_each_other() -> None:
    """With more topics than aliases, to define them in turn would cost bytes."""
    aliases = TopicAliases(2)
    told = [aliases.shorten(f"/topic/{n % 5}") for n in range(500)]

    assert sum(1 for topic, alias in told if topic and alias) == 2
