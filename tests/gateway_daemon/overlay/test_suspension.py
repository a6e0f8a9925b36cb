from hypothesis import given
from hypothesis import strategies as st

from gateway_daemon.overlay.keys import Key, Role, subscribers_of
from gateway_daemon.overlay.publisher_suspension import (
    AskHeard,
    Heard,
    Suspension,
    Whisper,
)

keys = st.sampled_from([
    Key(topic, role, name) for topic in "xyz" for role in Role for name in "abcde"
])


def publisher(name: str, topic: str = "y") -> Key:
    return Key(topic, Role.PUBLISHER, name)


def subscriber(name: str, topic: str = "y") -> Key:
    return Key(topic, Role.SUBSCRIBER, name)


class Row:
    """All keys of level 0 in order, and messages that arrive at once."""

    def __init__(self) -> None:
        self.nodes: dict[Key, Suspension | None] = {}
        self.messages = 0

    def change(self, joins: set[Key], goes: set[Key] = frozenset()) -> None:
        for key in joins:
            is_publisher = key.role == Role.PUBLISHER
            self.nodes[key] = Suspension(key) if is_publisher else None
        for key in goes:
            self.nodes.pop(key, None)
        order = sorted(self.nodes)
        for at, key in enumerate(order):
            node = self.nodes[key]
            if node is not None:
                after = order[(at + 1) % len(order)]
                self._carry(key, node.set_neighbours(order[at - 1], after))

    def _carry(self, sender: Key, whispers: list[Whisper]) -> None:
        for to, packet in whispers:
            self.messages += 1
            node = self.nodes[to]
            assert node is not None, "only publishers are told"
            self._carry(to, node.receive(sender, packet))


@given(st.lists(st.tuples(st.sets(keys, min_size=1), st.sets(keys)), max_size=8))
def test_publishers_know_whether_somebody_listens(
    changes: list[tuple[set[Key], set[Key]]],
) -> None:
    """After any joins and crashes, in all topics at once."""
    row = Row()
    for joins, goes in changes:
        row.change(joins - set(row.nodes) - goes, goes)

        for key, node in row.nodes.items():
            if node is not None:
                listens = any(
                    k.topic == key.topic and k.role == Role.SUBSCRIBER
                    for k in row.nodes
                )
                assert node.has_subscribers == listens


def test_first_and_last_subscriber_cost_one_message_a_publisher() -> None:
    """Those in between cost nothing."""
    row = Row()
    row.change({publisher(name) for name in "abcde"} | {subscriber("m", "x")})
    costs = []
    for joins, goes in (("m", ""), ("ln", ""), ("", "lm"), ("", "n")):
        before = row.messages
        row.change({subscriber(n) for n in joins}, {subscriber(n) for n in goes})
        costs.append(row.messages - before)

    assert costs == [4, 0, 0, 4]


def test_who_knows_nothing_yet_publishes() -> None:
    """A message too many costs less than a warning too few."""
    assert Suspension(publisher("a")).has_subscribers


def test_an_old_neighbour_is_not_believed() -> None:
    """Its message may have been under way while a subscriber came."""
    node = Suspension(publisher("b"))
    asked = node.set_neighbours(publisher("a"), publisher("d"))

    assert asked == [Whisper(publisher("d"), AskHeard())]
    assert node.receive(publisher("c"), Heard(False)) == []
    assert node.has_subscribers


@given(keys, st.sampled_from("xyz"))
def test_a_topics_subscribers_are_one_range(key: Key, topic: str) -> None:
    """Everybody who subscribes, and nobody else."""
    low, high = subscribers_of(topic)

    assert (low <= key < high) == (key.topic == topic and key.role == Role.SUBSCRIBER)
