"""Gateways on the board: by the Managers' list, and by what nodes tell."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from conftest import Broker, wait_until
from console_house import NOW_S
from console_pages import find, text
from programs import Client
from selenium.webdriver import Chrome

from backend_spark.console.nodes import (
    LIST_VALID_S,
    GatewayList,
    NewestReading,
    NodeState,
    center_of_areas,
)
from service_runtime.tls import Endpoint
from spatial_mqtt.cells import Cell
from spatial_mqtt.directory import (
    BrokerEntry,
    BrokerInfo,
    GatewayLocation,
    encode_directory_message,
)
from spatial_mqtt.errors import BrokerError
from spatial_mqtt.topics import GATEWAY_INFO, cell_topic, gateway_location_topic

VALLEY = cell_topic(Cell.at(33.58, 133.52, 10))
SIDE = cell_topic(Cell.at(33.70, 133.60, 11))
ENTRIES = (
    BrokerEntry(VALLEY, BrokerInfo("gw-1", 1883)),
    BrokerEntry("/3", BrokerInfo("gw-2", 1883)),
)
MANAGERS = [Endpoint("m1", 1883), Endpoint("m2", 1883)]


def node(name: str, gateway: str, at_s: float) -> NodeState:
    """A node that told of its gateway."""
    said = NewestReading(at_s, None, gateway, None)
    return NodeState(name, at_s=at_s, readings={"agent/gateway": said})


NODES = (
    node("a", "gw-1:1883", NOW_S - 60),
    node("b", "gw-1:1883", NOW_S - 7200),
    node("c", "gw-9:1883", NOW_S - 30),
    node("d", "none", NOW_S),
)


def states(known: GatewayList, now_s: float) -> dict[str, str]:
    """State by name, in the order of the board."""
    return {row["id"]: row["state"] for row in known.rows(NODES, now_s)}


def test_who_is_not_on_the_newest_list_is_gone() -> None:
    """Worst first; a gateway that only nodes know of is not on the list either."""
    known = GatewayList()
    known.replace_list(ENTRIES, NOW_S)
    known.replace_list(ENTRIES[:1], NOW_S + 15)

    assert states(known, NOW_S + 20) == {
        "gw-2:1883": "gone",
        "gw-9:1883": "gone",
        "gw-1:1883": "well",
    }


def test_without_a_list_the_nodes_tell() -> None:
    """A list that is old, or none, says nothing of now."""
    known = GatewayList()
    assert states(known, NOW_S) == {"gw-1:1883": "well", "gw-9:1883": "well"}
    known.replace_list(ENTRIES, NOW_S - LIST_VALID_S - 1)
    assert states(known, NOW_S) == {
        "gw-2:1883": "silent",
        "gw-1:1883": "well",
        "gw-9:1883": "well",
    }


def test_row_counts_nodes_and_says_when_one_was_heard() -> None:
    """By the newest word of its nodes."""
    row = next(r for r in GatewayList().rows(NODES, NOW_S) if r["id"] == "gw-1:1883")

    assert (row["nodes"], row["heard_s"], row["place"]) == (2, NOW_S - 60, None)


def test_place_is_the_centre_of_the_smallest_area_that_is_one() -> None:
    """A face of the earth, or the whole of it, is no place to draw a gateway at."""
    assert center_of_areas(("/3", VALLEY)) == pytest.approx((33.6, 133.5), abs=0.1)
    assert center_of_areas(("/", "/3", "/3/1/2")) is None


def test_a_gateway_stands_where_it_says_and_others_about_there() -> None:
    """A place that is none is left out, one that was taken back is gone."""
    here = encode_directory_message(
        GatewayLocation(ENTRIES[0].broker_info, 33.55, 133.53)
    )
    told = {
        GATEWAY_INFO: encode_directory_message(ENTRIES),
        gateway_location_topic("gw-1"): here,
        gateway_location_topic("gw-2"): here.replace(b"33.55", b"95.5"),
    }
    known = GatewayList()
    known.fetch_list(MANAGERS[:1], lambda _: told, NOW_S)
    rows = {row["id"]: row for row in known.rows([], NOW_S)}

    assert rows["gw-1:1883"]["place"] == (33.55, 133.53)
    assert rows["gw-1:1883"]["exact"]
    assert not rows["gw-2:1883"]["exact"]
    known.fetch_list(
        MANAGERS[:1], lambda _: {GATEWAY_INFO: encode_directory_message(ENTRIES)}, NOW_S
    )
    assert not any(row["exact"] for row in known.rows([], NOW_S))


def test_the_second_manager_is_asked_when_the_first_is_silent() -> None:
    """What nobody answers is said, and the older list is kept."""

    def fetch(manager: Endpoint) -> dict[str, bytes]:
        if manager.host in silent:
            raise BrokerError(str(manager), "no answer within 5 s")
        return {GATEWAY_INFO: encode_directory_message(ENTRIES)}

    known, silent = GatewayList(), {"m1"}
    known.fetch_list(MANAGERS, fetch, NOW_S)
    assert known.listed == {"gw-1:1883", "gw-2:1883"}
    assert known.problem is None
    silent.add("m2")
    known.fetch_list(MANAGERS, fetch, NOW_S + 15)
    assert (known.listed_at_s, len(known.areas)) == (NOW_S, 2)
    assert known.problem is not None
    assert "m1:1883" in known.problem
    assert "m2:1883" in known.problem


def test_a_list_that_is_none_is_said() -> None:
    """Bytes of somebody else's end no loop."""
    known = GatewayList()
    known.fetch_list(MANAGERS[:1], lambda _manager: {GATEWAY_INFO: b"[{]"}, NOW_S)

    assert "gateway list" in str(known.problem)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Broker]:
    """A Manager's broker with its list."""
    broker = Broker(tmp_path)
    client = Client(broker.endpoint, "manager")
    listed = (*ENTRIES, BrokerEntry(SIDE, BrokerInfo("gw-3", 1883)))
    client.publish(GATEWAY_INFO, encode_directory_message(listed), retain=True)
    place = encode_directory_message(
        GatewayLocation(ENTRIES[0].broker_info, 33.55, 133.53)
    )
    client.publish(gateway_location_topic("gw-1"), place, retain=True)
    yield broker
    client.connection.stop()
    broker.kill()


@pytest.mark.broker
def test_console_shows_what_a_manager_lists(
    run_console: Callable[..., str], manager: Broker, driver: Chrome
) -> None:
    """The program itself, a real broker, the retained list."""
    address = run_console(f'managers = ["{manager.url}"]', exercise=False)

    def told() -> dict[str, str]:
        rows = httpx.get(f"{address}api/gateways").json()
        return {row["id"]: row["state"] for row in rows}

    wait_until(lambda: told() == {f"gw-{n}:1883": "well" for n in (1, 2, 3)})
    areas = httpx.get(f"{address}api/health").json()["gateways"][0]["areas"]
    assert areas == [VALLEY]
    driver.get(f"{address}?lang=en")
    find(driver, "[data-tab=health]").click()
    wait_until(lambda: "as set" in text(driver, "tr[data-gateway='gw-1:1883']"))
    assert "about here" in text(driver, "tr[data-gateway='gw-3:1883']")
