from hypothesis import given
from hypothesis import strategies as st

from gateway_daemon.overlay.keys import OverlayKey, TopicRole, subscriber_range
from gateway_daemon.overlay.publisher_suspension import (
    HasSubscribers,
    HasSubscribersQuery,
    PublisherSuspension,
    SuspensionSend,
)

keys = st.sampled_from([
    OverlayKey(topic, role, name)
    for topic in "xyz"
    for role in TopicRole
    for name in "abcde"
])


def publisher(name: str, topic: str = "y") -> OverlayKey:
    return OverlayKey(topic, TopicRole.PUBLISHER, name)


def subscriber(name: str, topic: str = "y") -> OverlayKey:
    return OverlayKey(topic, TopicRole.SUBSCRIBER, name)


class Row:
    """All keys of level 0 in order, and messages that arrive at once."""

    def __init__(self) -> None:
        self.nodes: dict[OverlayKey, PublisherSuspension | None] = {}
        self.messages = 0

    def change(
        self, joins: set[OverlayKey], goes: set[OverlayKey] = frozenset()
    ) -> None:
        for key in joins:
            is_publisher = key.role == TopicRole.PUBLISHER
            self.nodes[key] = PublisherSuspension(key) if is_publisher else None
        for key in goes:
            self.nodes.pop(key, None)
        order = sorted(self.nodes)
        for at, key in enumerate(order):
            node = self.nodes[key]
            if node is not None:
                after = order[(at + 1) % len(order)]
                self._carry(key, node.set_neighbours(order[at - 1], after))

    def _carry(self, sender: OverlayKey, whispers: list[SuspensionSend]) -> None:
        for to, packet in whispers:
            self.messages += 1
            node = self.nodes[to]
            assert node is not None, "only publishers are told"
            self._carry(to, node.receive(sender, packet))


@given(st.lists(st.tuples(st.sets(keys, min_size=1), st.sets(keys)), max_size=8))
def test_publishers_know_whether_somebody_listens(
    changes: list[tuple[set[OverlayKey], set[OverlayKey]]],
) -> None:
    """After any joins and crashes, in all topics at once."""
    row = Row()
    for joins, goes in changes:
        row.change(joins - set(row.nodes) - goes, goes)

        for key, node in row.nodes.items():
            if node is not None:
                listens = any(
                    k.topic == key.topic and k.role == TopicRole.SUBSCRIBER
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
    assert PublisherSuspension(publisher("a")).has_subscribers


def test_an_old_neighbour_is_not_believed() -> None:
    """Its message may have been under way while a subscriber came."""
    node = PublisherSuspension(publisher("b"))
    asked = node.set_neighbours(publisher("a"), publisher("d"))

    assert asked == [SuspensionSend(publisher("d"), HasSubscribersQuery())]
    assert node.receive(publisher("c"), HasSubscribers(False)) == []
    assert node.has_subscribers


@given(keys, st.sampled_from("xyz"))
def test_a_topics_subscribers_are_one_range(key: OverlayKey, topic: str) -> None:
    """Everybody who subscribes, and nobody else."""
    low, high = subscriber_range(topic)

    assert (low <= key < high) == (
        key.topic == topic and key.role == TopicRole.SUBSCRIBER
    )
