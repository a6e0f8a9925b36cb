"""Directory messages: Gamma's names on the wire, and the choice of a gateway."""

import json
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spatial_mqtt.directory import (
    MAX_AREAS,
    AreaSetting,
    BrokerEntry,
    BrokerInfo,
    BrokerTable,
    GatewayNotice,
    decode_area_setting,
    decode_broker_entry,
    decode_broker_table,
    decode_gateway_notice,
    decode_gateways,
    encode_directory_message,
    find_responsible_broker,
    rank_gateways,
)
from spatial_mqtt.errors import DirectoryError
from spatial_mqtt.topics import MAX_TOPIC_CHARS, covers

BROKERS = st.builds(BrokerInfo, host=st.text(min_size=1), port=st.integers(1, 65535))
DIGITS = st.lists(st.sampled_from("0123"), max_size=4)
AREAS = DIGITS.map(lambda digits: "/" + "/".join(digits))
ENTRIES = st.builds(BrokerEntry, topic=AREAS, broker_info=BROKERS)
Decoder = Callable[[bytes], object]
DECODERS: list[Decoder] = [
    decode_gateways,
    decode_broker_table,
    decode_gateway_notice,
    decode_area_setting,
    decode_broker_entry,
]
H1, H2, H3 = (BrokerInfo(f"h{n}", 1883) for n in (1, 2, 3))


def keep_order(_entries: list[BrokerEntry]) -> None:
    """A shuffle that keeps the order."""


@given(entries=st.lists(ENTRIES).map(tuple))
def test_gateway_list_survives_encoding_and_decoding(
    entries: tuple[BrokerEntry, ...],
) -> None:
    """A Manager publishes it, a client reads it."""
    assert decode_gateways(encode_directory_message(entries)) == entries


@given(entry=ENTRIES)
def test_broker_entry_survives_encoding_and_decoding(entry: BrokerEntry) -> None:
    """Area, host and port are kept."""
    assert decode_broker_entry(encode_directory_message(entry)) == entry


@given(
    table=st.builds(BrokerTable, st.integers(0, 10**6), st.lists(ENTRIES).map(tuple))
)
def test_broker_table_survives_encoding_and_decoding(table: BrokerTable) -> None:
    """Version and order of a table are kept."""
    assert decode_broker_table(encode_directory_message(table)) == table


@given(
    notice=st.builds(
        GatewayNotice,
        BROKERS,
        st.sampled_from(["up", "complete"]),
        st.integers(-1, 10**6),
    )
)
def test_gateway_notice_survives_encoding_and_decoding(notice: GatewayNotice) -> None:
    """All fields reach the Manager."""
    assert decode_gateway_notice(encode_directory_message(notice)) == notice


@given(
    setting=st.one_of(
        st.builds(AreaSetting, BROKERS, topics=st.lists(AREAS, min_size=1).map(tuple)),
        st.builds(AreaSetting, BROKERS, topic=AREAS),
    )
)
def test_area_setting_survives_encoding_in_both_forms(setting: AreaSetting) -> None:
    """`topics` replaces, `topic` adds; neither form turns into the other."""
    assert decode_area_setting(encode_directory_message(setting)) == setting
    assert ("topics" in json.loads(encode_directory_message(setting))) == (
        setting.topics is not None
    )


def test_messages_of_gamma_are_decoded() -> None:
    """The exact payloads that Gamma sends."""
    info = b'{"host":"h1","port":1883}'

    assert decode_gateways(b'[{"topic":"/0","broker_info":' + info + b"}]") == (
        BrokerEntry("/0", H1),
    )
    assert decode_broker_table(
        b'{"version":3,"brokers":[{"topic":"/","broker_info":' + info + b"}]}"
    ) == BrokerTable(3, (BrokerEntry("/", H1),))
    assert decode_gateway_notice(
        b'{"broker_info":' + info + b',"status":"up","version":-1}'
    ) == GatewayNotice(H1, "up", -1)
    assert decode_area_setting(
        b'{"topics":["/0","/1/2"],"broker_info":' + info + b"}"
    ) == AreaSetting(H1, topics=("/0", "/1/2"))
    assert decode_area_setting(
        b'{"topic":"/0","broker_info":' + info + b"}"
    ) == AreaSetting(H1, topic="/0")


def test_messages_to_gamma_have_its_names() -> None:
    """Gamma reads our messages by the same keys."""
    assert json.loads(encode_directory_message((BrokerEntry("/0", H1),))) == [
        {"topic": "/0", "broker_info": {"host": "h1", "port": 1883}}
    ]
    assert json.loads(encode_directory_message(GatewayNotice(H1, "complete", 4))) == {
        "broker_info": {"host": "h1", "port": 1883},
        "status": "complete",
        "version": 4,
    }


@pytest.mark.parametrize(
    "value",
    [
        {"broker_info": {"host": "h", "port": 1}},
        {"broker_info": {"host": "h", "port": 1}, "topic": "/0", "topics": ["/0"]},
        {"broker_info": {"host": "h", "port": 1}, "topics": None},
        {"broker_info": {"host": "h", "port": 1}, "topics": ["/0", "/+"]},
        {"broker_info": {"host": "h", "port": 1}, "topic": "0"},
        {"broker_info": {"host": "", "port": 1}, "topic": "/0"},
        {"broker_info": {"host": "h", "port": 0}, "topic": "/0"},
        {"broker_info": {"host": "h", "port": 65536}, "topic": "/0"},
        {"broker_info": {"host": "h", "port": "1"}, "topic": "/0"},
        {"broker_info": None, "topic": "/0"},
        {"topic": "/0"},
        [],
        None,
    ],
)
def test_malformed_area_setting_is_refused(value: object) -> None:
    """A setting names one broker and its areas, in exactly one of the two forms."""
    with pytest.raises(DirectoryError, match="area setting must be JSON of its form"):
        decode_area_setting(json.dumps(value).encode())


def test_notice_of_another_status_is_refused() -> None:
    """The statuses are "up" and "complete"."""
    payload = b'{"broker_info":{"host":"h","port":1},"status":"down"}'
    with pytest.raises(DirectoryError, match=r"gateway notice must be .*'down'"):
        decode_gateway_notice(payload)


def test_null_gateway_list_is_refused() -> None:
    """Gamma's Manager sends null; it is an error, not an empty list."""
    with pytest.raises(DirectoryError, match="gateway list must be JSON of its form"):
        decode_gateways(b"null")


@pytest.mark.parametrize("decode", DECODERS)
@given(payload=st.one_of(st.binary(), st.text().map(str.encode)))
def test_any_bytes_are_a_message_or_refused(decode: Decoder, payload: bytes) -> None:
    """A bad payload raises only the package's own error."""
    try:
        decode(payload)
    except DirectoryError as error:
        error_text = str(error)
    else:
        error_text = "must be JSON of its form"

    assert "must be JSON of its form" in error_text


@pytest.mark.parametrize(
    "decode", [decode_broker_table, decode_gateway_notice, decode_broker_entry]
)
def test_deeply_nested_message_is_refused(decode: Decoder) -> None:
    """A payload that consists of brackets is refused without exhausting the stack."""
    with pytest.raises(DirectoryError, match="must be JSON of its form"):
        decode(b'{"x":' + b"[" * 100_000)


def test_gateway_with_the_longest_area_comes_first() -> None:
    """The closest gateway is first; the others follow for failover."""
    entries = [BrokerEntry("/", H1), BrokerEntry("/1/2", H2), BrokerEntry("/1", H3)]

    assert rank_gateways(entries, "/1/2/3", keep_order) == [H2, H3, H1]


def test_nearest_area_is_chosen_where_none_matches() -> None:
    """A node outside all areas uses a nearby gateway, not a distant one."""
    osaka = "/" + "/".join("31100231")  # S2 cells of level 7
    kobe, tokyo = osaka[:-1] + "2", "/" + "/".join("30020301")
    entries = [BrokerEntry(tokyo, H1), BrokerEntry(kobe, H2), BrokerEntry("/6/9", H3)]

    assert rank_gateways(entries, osaka, keep_order) == [H2, H1, H3]


def test_area_matches_by_levels_not_characters() -> None:
    """`/1/2` is no area of `/1/23`."""
    entries = [BrokerEntry("/1/2", H1), BrokerEntry("/", H2)]

    assert rank_gateways(entries, "/1/23", keep_order) == [H2, H1]


def test_equal_areas_share_the_clients() -> None:
    """Gateways of one area are ordered at random, so each serves some clients."""
    entries = [BrokerEntry("/", H1), BrokerEntry("/", H2), BrokerEntry("/", H3)]
    firsts = [
        rank_gateways(entries, "/1", random.Random(seed).shuffle)[0]
        for seed in range(300)
    ]

    assert all(firsts.count(host) > 60 for host in (H1, H2, H3))


@given(
    entries=st.lists(st.builds(BrokerEntry, AREAS, st.sampled_from([H1, H2, H3]))),
    topic=AREAS,
    seed=st.integers(0, 1000),
)
def test_ranking_follows_the_steps_of_the_paper(
    entries: list[BrokerEntry], topic: str, seed: int
) -> None:
    """Shuffle, sort by length, first match; every broker appears once."""
    before = list(entries)
    ranked = rank_gateways(entries, topic, random.Random(seed).shuffle)
    ordered = list(entries)
    random.Random(seed).shuffle(ordered)
    ordered.sort(key=lambda entry: -len(entry.topic))
    paper = next((e for e in ordered if covers(e.topic, topic)), None)

    assert paper is None or ranked[0] == paper.broker_info
    assert sorted(ranked) == sorted({entry.broker_info for entry in entries})
    assert entries == before


@given(brokers=st.lists(ENTRIES), topic=AREAS)
def test_responsible_broker_has_the_closest_area(
    brokers: list[BrokerEntry], topic: str
) -> None:
    """No other broker's area is closer; None means that no area covers the topic."""
    near = [entry for entry in brokers if covers(entry.topic, topic)]
    found = find_responsible_broker(brokers, topic)

    assert (found is None) == (not near)
    longest = max((len(entry.topic) for entry in near), default=0)
    closest = {entry.broker_info for entry in near if len(entry.topic) == longest}
    assert found is None or found in closest


def test_root_broker_is_responsible_for_uncovered_topics() -> None:
    """`/` covers every topic that no other area covers."""
    brokers = [BrokerEntry("/", H1), BrokerEntry("/0", H2), BrokerEntry("/0/1", H3)]

    assert find_responsible_broker(brokers, "/0/1/2") == H3
    assert find_responsible_broker(brokers, "/0/11") == H2
    assert find_responsible_broker(brokers, "/5") == H1
    assert find_responsible_broker(brokers[1:], "/5") is None


def test_broker_is_formatted_as_host_and_port() -> None:
    """The operator reads the address that the socket connects to."""
    assert str(H1) == "h1:1883"


@pytest.mark.parametrize(
    "message",
    [
        {"topics": [f"/{number}" for number in range(MAX_AREAS + 1)]},
        {"topics": ["/" + "1" * MAX_TOPIC_CHARS]},
        {"topics": ["/1"], "broker_info": {"host": "h" * 254, "port": 1}},
    ],
    ids=["areas", "area", "host"],
)
def test_request_that_fills_the_lists_is_refused(message: dict[str, object]) -> None:
    """A rogue gateway's request is in the list that every node fetches."""
    whole = {"broker_info": {"host": "h1", "port": 1883}} | message
    with pytest.raises(DirectoryError, match=r"at most|between 1 and 253"):
        decode_area_setting(json.dumps(whole).encode())
