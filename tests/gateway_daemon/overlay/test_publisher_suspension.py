from hypothesis import given
from hypothesis import strategies as st

from gateway_daemon.overlay.keys import OverlayKey, TopicRole, subscriber_range
from gateway_daemon.overlay.messages import HasSubscribers, HasSubscribersQuery
from gateway_daemon.overlay.skip_graph_node import PublisherSuspension, SuspensionSend

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


class LevelZero:
    """All keys of level 0 in order; messages between them arrive at once."""

    def __init__(self) -> None:
        self.nodes: dict[OverlayKey, PublisherSuspension | None] = {}
        self.messages = 0

    def change(
        self, joins: set[OverlayKey], leaves: set[OverlayKey] = frozenset()
    ) -> None:
        for key in joins:
            is_publisher = key.role == TopicRole.PUBLISHER
            self.nodes[key] = PublisherSuspension(key) if is_publisher else None
        for key in leaves:
            self.nodes.pop(key, None)
        order = sorted(self.nodes)
        for at, key in enumerate(order):
            node = self.nodes[key]
            if node is not None:
                after = order[(at + 1) % len(order)]
                self._deliver(key, node.set_neighbours(order[at - 1], after))

    def _deliver(self, sender: OverlayKey, sends: list[SuspensionSend]) -> None:
        for to, packet in sends:
            self.messages += 1
            node = self.nodes[to]
            assert node is not None, "only publishers receive suspension messages"
            self._deliver(to, node.receive(sender, packet))


@given(st.lists(st.tuples(st.sets(keys, min_size=1), st.sets(keys)), max_size=8))
def test_publishers_know_whether_their_topic_has_subscribers(
    changes: list[tuple[set[OverlayKey], set[OverlayKey]]],
) -> None:
    """After any joins and crashes, in all topics at once."""
    level = LevelZero()
    for joins, leaves in changes:
        level.change(joins - set(level.nodes) - leaves, leaves)

        for key, node in level.nodes.items():
            if node is not None:
                has_subscriber = any(
                    k.topic == key.topic and k.role == TopicRole.SUBSCRIBER
                    for k in level.nodes
                )
                assert node.has_subscribers == has_subscriber


def test_first_and_last_subscriber_cost_one_message_per_publisher() -> None:
    """Subscribers in between cost no message."""
    level = LevelZero()
    level.change({publisher(name) for name in "abcde"} | {subscriber("m", "x")})
    costs = []
    for joins, leaves in (("m", ""), ("ln", ""), ("", "lm"), ("", "n")):
        before = level.messages
        level.change({subscriber(n) for n in joins}, {subscriber(n) for n in leaves})
        costs.append(level.messages - before)

    assert costs == [4, 0, 0, 4]


def test_publisher_without_information_publishes() -> None:
    """A superfluous message is cheaper than a missing warning."""
    assert PublisherSuspension(publisher("a")).has_subscribers


def test_answer_of_a_former_neighbour_is_ignored() -> None:
    """Its message may have been in transit while a subscriber joined."""
    node = PublisherSuspension(publisher("b"))
    queries = node.set_neighbours(publisher("a"), publisher("d"))

    assert queries == [SuspensionSend(publisher("d"), HasSubscribersQuery())]
    assert node.receive(publisher("c"), HasSubscribers(False)) == []
    assert node.has_subscribers


@given(keys, st.sampled_from("xyz"))
def test_subscribers_of_a_topic_form_one_range(key: OverlayKey, topic: str) -> None:
    """The range holds all subscribers of the topic and no other key."""
    low, high = subscriber_range(topic)

    assert (low <= key < high) == (
        key.topic == topic and key.role == TopicRole.SUBSCRIBER
    )
