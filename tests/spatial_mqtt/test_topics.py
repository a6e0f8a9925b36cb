"""Formatting and parsing of topics and filters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.client import topic_matches_sub

from spatial_mqtt.cells import Cell, cover_circle
from spatial_mqtt.errors import TopicError
from spatial_mqtt.priority import Ladder
from spatial_mqtt.topics import (
    CELL_FILTERS,
    FORWARD_FILTER,
    MAX_TOPIC_CHARS,
    OFFER_FILTER,
    ForwardTopic,
    cell_filter,
    cell_topic,
    check_area,
    check_node_id,
    check_publishable,
    covers,
    custody_topic,
    matches,
    maximal_filters,
    offer_topic,
    overlaps,
    parse_cell_topic,
    parse_custody_topic,
)

CELLS = st.builds(
    lambda face, digits: Cell.from_digits(face, tuple(digits)),
    st.integers(0, 5),
    st.lists(st.integers(0, 3), max_size=30),
)
LEVEL = st.one_of(
    st.sampled_from(["1", "23", "a", "b", "pri", "pri0", "pri9", "pri12", "x pri3"]),
    st
    .text(st.characters(exclude_categories=["Cs"], exclude_characters="/+#\0"))
    .filter(bool)
    .filter(lambda level: not level.startswith("pri")),
)
PATHS = (
    st
    .lists(LEVEL, min_size=1, max_size=6)
    .map(lambda levels: "/" + "/".join(levels))
    .filter(lambda path: len(path) < MAX_TOPIC_CHARS - 100)
)
NODES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True).filter(
    lambda node: node != "offer"
)
FEW = st.sampled_from(["", "a", "b", "$s"])
TOPICS = st.lists(FEW, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.builds(
    lambda levels, tail: "/".join(levels + tail),
    st.lists(st.one_of(FEW, st.just("+")), min_size=1, max_size=4),
    st.sampled_from([[], ["#"]]),
).filter(bool)


@given(cell=CELLS)
def test_cell_survives_formatting_and_parsing(cell: Cell) -> None:
    """A cell's topic names that cell, and its filter matches the topic."""
    topic = cell_topic(cell)

    assert parse_cell_topic(topic) == cell
    assert topic == "/" + "/".join(cell.name.replace("/", ""))
    assert matches(cell_filter(cell), topic)


@given(outer=CELLS, inner=CELLS)
def test_filter_matches_exactly_the_cells_within(outer: Cell, inner: Cell) -> None:
    """A subscription to a cell matches a topic exactly if the cell contains it."""
    is_match = matches(cell_filter(outer), cell_topic(inner))

    assert (
        is_match
        == outer.contains(inner)
        == covers(cell_topic(outer), cell_topic(inner))
    )


@given(cell=CELLS)
def test_six_filters_match_every_cell_once(cell: Cell) -> None:
    """Exactly one of the cell filters matches the topic of a cell."""
    matching = [
        filter_ for filter_ in CELL_FILTERS if matches(filter_, cell_topic(cell))
    ]

    assert matching == [f"/{cell.face}/#"]


@pytest.mark.parametrize(
    "topic", ["/api/gateway/info/all", "/forward/1/2", "/custody/n"]
)
def test_cell_filters_match_no_system_topic(topic: str) -> None:
    """A subscription to all cells does not receive directory and custody messages."""
    assert not any(matches(filter_, topic) for filter_ in CELL_FILTERS)


def test_circle_of_the_paper_gives_its_four_filters() -> None:
    """Table 3 of the paper, filter by filter."""
    cells = cover_circle(31.828061073646502, 131.4153025207035, 1.0)

    assert [cell_filter(cell) for cell in cells] == [
        "/1/2/2/2/1/3/0/1/2/1/0/0/2/#",
        "/1/2/2/2/1/3/0/1/2/1/0/0/3/#",
        "/1/2/2/2/1/3/0/1/2/1/0/1/0/1/1/1/#",
        "/1/2/2/2/1/3/0/1/2/1/0/1/3/#",
    ]


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "/",
        "1/2",
        "/6",
        "/1/4",
        "/1/22",
        "/1/",
        "/1//2",
        "/a",
        "/1/2\n",
        "/0" + "/1" * 31,
    ],
)
def test_topic_of_no_cell_is_refused(topic: str) -> None:
    """A cell topic is a face and one digit per level."""
    with pytest.raises(TopicError, match="topic must be a cell's"):
        parse_cell_topic(topic)


@given(topic=st.text())
def test_any_text_is_a_cells_topic_or_refused(topic: str) -> None:
    """A foreign topic raises only the package's own error."""
    try:
        cell = parse_cell_topic(topic)
    except TopicError:
        return
    assert cell_topic(cell) == topic


@given(topic=PATHS, priority=st.one_of(st.none(), st.integers(1, 5)))
def test_forward_topic_survives_formatting_and_parsing(
    topic: str, priority: int | None
) -> None:
    """A last level that only resembles a priority stays in the topic."""
    forward = ForwardTopic(topic, priority)

    assert ForwardTopic.parse(str(forward)) == forward
    assert matches(FORWARD_FILTER, str(forward))


@given(topic=PATHS, inner=st.integers(1, 5), outer=st.integers(1, 5))
def test_only_the_last_level_is_the_priority(
    topic: str, inner: int, outer: int
) -> None:
    """A topic that ends with a priority keeps that level when another follows."""
    forward = ForwardTopic(f"{topic}/pri{inner}", outer)

    assert ForwardTopic.parse(str(forward)) == forward


@pytest.mark.parametrize(
    ("topic", "forward"),
    [
        ("/forward/1/2/pri5", ForwardTopic("/1/2", 5)),
        ("/forward/1/2/pri0", ForwardTopic("/1/2/pri0")),
        ("/forward/1/2/pri6", ForwardTopic("/1/2/pri6")),
        ("/forward/1/2/pri9", ForwardTopic("/1/2/pri9")),
        ("/forward/1/2/pri", ForwardTopic("/1/2/pri")),
        ("/forward/1/2/pri-1", ForwardTopic("/1/2/pri-1")),
        ("/forward/1/2/pri3x", ForwardTopic("/1/2/pri3x")),
        ("/forward/1/2/PRI3", ForwardTopic("/1/2/PRI3")),
        ("/forward/1/2/pri３", ForwardTopic("/1/2/pri３")),
        ("/forward/pri3", ForwardTopic("/pri3")),
        ("/forward/pri3/1", ForwardTopic("/pri3/1")),
        ("/forward/", ForwardTopic("/")),
        ("/from/n1/1/2/pri5", ForwardTopic("/1/2", 5, "n1")),
        ("/from/n1/pri5", ForwardTopic("/pri5", None, "n1")),
        ("/from/n1", ForwardTopic("/", None, "n1")),
    ],
)
def test_last_level_is_a_priority_only_when_valid(
    topic: str, forward: ForwardTopic
) -> None:
    """`priN` counts when N is a valid priority and a topic is left before it."""
    assert ForwardTopic.parse(topic) == forward


def test_forward_topic_uses_the_given_ladder() -> None:
    """The ladder defines which priorities are valid."""
    ladder = Ladder(tuple("abcdefghij"))

    assert ForwardTopic.parse("/forward/1/pri10", ladder) == ForwardTopic("/1", 10)
    assert ForwardTopic.parse("/forward/1/pri11", ladder) == ForwardTopic("/1/pri11")


@pytest.mark.parametrize("topic", ["", "/1/2", "/forward", "/forwards/1", "forward/1"])
def test_topic_outside_forward_is_refused(topic: str) -> None:
    """Only topics under /forward/ are publications for a gateway."""
    with pytest.raises(TopicError, match="topic must be under /forward/"):
        ForwardTopic.parse(topic)


def test_priority_of_very_many_digits_belongs_to_the_topic() -> None:
    """A number out of range is no priority and no error, however long."""
    topic = "/forward/1/pri" + "9" * 400

    assert ForwardTopic.parse(topic) == ForwardTopic("/1/pri" + "9" * 400)


@pytest.mark.parametrize(
    ("area", "topic", "is_covered"),
    [
        ("/", "/1/2", True),
        ("/", "/", True),
        ("/1/2", "/1/2", True),
        ("/1/2", "/1/2/3", True),
        ("/1/2", "/1/23", False),
        ("/1/2", "/1", False),
        ("/1/2/", "/1/2/3", True),
        ("/1/2", "/0/1/2", False),
    ],
)
def test_area_covers_by_whole_levels(area: str, topic: str, is_covered: bool) -> None:
    """An area is a prefix of levels, not of characters."""
    assert covers(area, topic) is is_covered


@given(area=PATHS, topic=PATHS)
def test_area_covers_what_its_filter_matches(area: str, topic: str) -> None:
    """An area covers a topic exactly if a subscription to the area matches it."""
    assert covers(area, topic) == matches(area + "/#", topic)


@pytest.mark.parametrize(
    ("filter_", "topic", "is_match"),
    [
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab", False),
        ("#", "a/b", True),
        ("#", "/", True),
        ("+", "a", True),
        ("+", "/a", False),
        ("+/+", "/a", True),
        ("/+", "/a", True),
        ("/+", "/", True),
        ("a/+", "a", False),
        ("a/+", "a/", True),
        ("a/+/c", "a/b/c", True),
        ("a/+/c", "a/b/d/c", False),
        ("a/+/#", "a/b", True),
        ("a/+/#", "a", False),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("+/#", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
        ("$SYS/+", "$SYS/x", True),
        ("a/#", "a/$b", True),
        ("A", "a", False),
    ],
)
def test_filter_matches_as_in_the_standard(
    filter_: str, topic: str, is_match: bool
) -> None:
    """The examples of section 4.7 of the standard."""
    assert matches(filter_, topic) is is_match


@given(filter_=FILTERS, topic=TOPICS)
def test_filter_agrees_with_paho(filter_: str, topic: str) -> None:
    """Paho's own matcher accepts the same topics."""
    assert matches(filter_, topic) == topic_matches_sub(filter_, topic)


@given(area=PATHS)
def test_path_is_an_area(area: str) -> None:
    """A gateway may be responsible for any topic."""
    assert check_area(area) == area
    assert check_area("/") == "/"


@pytest.mark.parametrize(
    "area", ["", "1", "1/2", "/1/", "//", "/1//2", "/1/+", "/#", "#"]
)
def test_area_that_is_no_prefix_is_refused(area: str) -> None:
    """An area has no wildcards and no empty levels."""
    with pytest.raises(TopicError, match="area must be / or levels"):
        check_area(area)


@given(topic=PATHS.filter(str.isprintable))
def test_topic_without_wildcards_may_be_published(topic: str) -> None:
    """A valid topic is returned unchanged."""
    assert check_publishable(topic) == topic
    assert check_publishable("x" * 65535)


@pytest.mark.parametrize(
    "topic",
    ["", "a/+", "a/#", "a\0b", "\x9f", "\ufffe", "/" * 201, "x" * 65536, "雨" * 21846],
)
def test_topic_that_mqtt_cannot_publish_is_refused(topic: str) -> None:
    """Mosquitto ends the connection at each of them."""
    with pytest.raises(TopicError, match="topic must be 1 to 65535 bytes"):
        check_publishable(topic)


@given(node=NODES)
def test_sender_survives_its_custody_topic(node: str) -> None:
    """Receipts for a sender are published on a topic with its name only."""
    assert parse_custody_topic(custody_topic(node)) == node
    assert matches(OFFER_FILTER, offer_topic(node))
    assert not matches(OFFER_FILTER, custody_topic(node))


@pytest.mark.parametrize(
    "node", ["", "offer", "-a", ".a", "_a", "a/b", "a b", "a+", "雨", "a\n", "a" * 64]
)
def test_id_that_is_no_topic_level_is_refused(node: str) -> None:
    """An id is short and plain, and never the reserved name `offer`."""
    for use in (check_node_id, custody_topic, offer_topic):
        with pytest.raises(TopicError, match="id must be 1 to 63"):
            use(node)


@pytest.mark.parametrize("topic", ["/custody/offer/a", "/custody/", "/custody/offer"])
def test_custody_topic_of_no_sender_is_refused(topic: str) -> None:
    """An offer topic is not a receipt topic."""
    with pytest.raises(TopicError, match="id must be"):
        parse_custody_topic(topic)


def test_topic_outside_custody_is_refused() -> None:
    """Only topics under /custody/ belong to a sender."""
    with pytest.raises(TopicError, match="topic must be under /custody/"):
        parse_custody_topic("/1/2")


@given(FILTERS, FILTERS, TOPICS)
def test_filters_that_match_one_topic_overlap(
    first: str, second: str, topic: str
) -> None:
    """Filters that do not overlap never match the same topic."""
    if matches(first, topic) and matches(second, topic):
        assert overlaps(first, second)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("/3/#", "/3", True),
        ("/3/#", "/4/#", False),
        ("/3/+/1", "/3/2/#", True),
        ("/3/+", "/3/1/2", False),
        ("#", "/1", True),
        ("/3/+", "/3/1", True),
    ],
)
def test_overlap_of_filters(first: str, second: str, expected: bool) -> None:
    """In both orders."""
    assert overlaps(first, second) is expected
    assert overlaps(second, first) is expected


@given(filters=st.lists(FILTERS, max_size=6), topic=TOPICS)
def test_maximal_filters_match_the_same_topics(filters: list[str], topic: str) -> None:
    """A broker that gets these alone sends everything that the others match."""
    kept = maximal_filters(filters)

    assert kept <= set(filters)
    assert any(matches(f, topic) for f in kept) == any(
        matches(f, topic) for f in filters
    )


@given(filters=st.lists(FILTERS, max_size=6))
def test_maximal_filters_do_not_include_each_other(filters: list[str]) -> None:
    """Each one matches a topic of its own, so none of them could be left out."""
    kept = maximal_filters(filters)

    for filter_ in kept:
        topics = _examples(filter_)
        for other in kept - {filter_}:
            assert not all(matches(other, topic) for topic in topics)


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("/1/#", "/1"),
        ("/1/#", "/1/2/#"),
        ("/1/#", "/1/+/3"),
        ("/+/2/#", "/1/2/3/#"),
        ("/+/+", "/1/+"),
        ("#", "/1/#"),
        ("#", "+/#"),
        ("/#", "/+/#"),
    ],
)
def test_wider_filter_includes_a_narrower_one(wide: str, narrow: str) -> None:
    """Literal examples beside the properties."""
    assert maximal_filters([narrow, wide]) == {wide}


@pytest.mark.parametrize(
    "filters",
    [
        {"/1/+", "/1"},
        {"/1/#", "/12/#"},
        {"/1/+/3", "/1/2/+"},
        {"#", "$SYS/#"},
        {"+/a", "$s/a"},
        {"/1/+/#", "/1"},
    ],
)
def test_filters_that_do_not_include_each_other_stay(filters: set[str]) -> None:
    """They may overlap."""
    assert maximal_filters(filters) == filters


def _examples(filter_: str) -> list[str]:
    """Topics that match a filter; one of them fails any filter not including it."""
    levels = ["new" if level == "+" else level for level in filter_.split("/")]
    if levels[-1] != "#":
        return ["/".join(levels)]
    tails = [["new"] * count for count in range(6)]
    # With the empty topic, which "/#" matches but nothing may be published on.
    return ["/".join(levels[:-1] + tail) for tail in tails]
