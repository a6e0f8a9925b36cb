"""Table of gateways, from the Managers' list and the nodes' status reports."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from conftest import Broker, wait_until
from console_pages import find, text
from console_workspace import NOW_S
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
    """A node that reported its gateway."""
    reading = NewestReading(at_s, None, gateway, None)
    return NodeState(name, at_s=at_s, readings={"agent/gateway": reading})


NODES = (
    node("a", "gw-1:1883", NOW_S - 60),
    node("b", "gw-1:1883", NOW_S - 7200),
    node("c", "gw-9:1883", NOW_S - 30),
    node("d", "none", NOW_S),
)


def states(known: GatewayList, now_s: float) -> dict[str, str]:
    """State by gateway, in the order of the table."""
    return {row["id"]: row["state"] for row in known.rows(NODES, now_s)}


def test_gateway_missing_from_the_newest_list_is_gone() -> None:
    """Worst first; so is a gateway that only nodes reported."""
    known = GatewayList()
    known.replace_list(ENTRIES, NOW_S)
    known.replace_list(ENTRIES[:1], NOW_S + 15)

    assert states(known, NOW_S + 20) == {
        "gw-2:1883": "gone",
        "gw-9:1883": "gone",
        "gw-1:1883": "well",
    }


def test_without_a_valid_list_states_come_from_nodes() -> None:
    """A list older than `LIST_VALID_S` is not used."""
    known = GatewayList()
    assert states(known, NOW_S) == {"gw-1:1883": "well", "gw-9:1883": "well"}
    known.replace_list(ENTRIES, NOW_S - LIST_VALID_S - 1)
    assert states(known, NOW_S) == {
        "gw-2:1883": "silent",
        "gw-1:1883": "well",
        "gw-9:1883": "well",
    }


def test_row_has_node_count_and_last_reading() -> None:
    """The time is that of its nodes' newest reading."""
    row = next(r for r in GatewayList().rows(NODES, NOW_S) if r["id"] == "gw-1:1883")

    assert (row["nodes"], row["received_s"], row["place"]) == (2, NOW_S - 60, None)


def test_place_is_the_centre_of_the_smallest_area() -> None:
    """A whole S2 face is too large to draw a gateway at its centre."""
    assert center_of_areas(("/3", VALLEY)) == pytest.approx((33.6, 133.5), abs=0.1)
    assert center_of_areas(("/", "/3", "/3/1/2")) is None


def test_published_location_is_exact_and_others_approximate() -> None:
    """An invalid location is ignored; a withdrawn one is no longer used."""
    location = encode_directory_message(
        GatewayLocation(ENTRIES[0].broker_info, 33.55, 133.53)
    )
    retained = {
        GATEWAY_INFO: encode_directory_message(ENTRIES),
        gateway_location_topic("gw-1"): location,
        gateway_location_topic("gw-2"): location.replace(b"33.55", b"95.5"),
    }
    known = GatewayList()
    known.fetch_list(MANAGERS[:1], lambda _: retained, NOW_S)
    rows = {row["id"]: row for row in known.rows([], NOW_S)}

    assert rows["gw-1:1883"]["place"] == (33.55, 133.53)
    assert rows["gw-1:1883"]["exact"]
    assert not rows["gw-2:1883"]["exact"]
    known.fetch_list(
        MANAGERS[:1], lambda _: {GATEWAY_INFO: encode_directory_message(ENTRIES)}, NOW_S
    )
    assert not any(row["exact"] for row in known.rows([], NOW_S))


def test_second_manager_is_used_when_the_first_fails() -> None:
    """If all fail, the problem is reported and the older list is kept."""

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


def test_malformed_list_is_reported() -> None:
    """Undecodable bytes do not end the loop."""
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
    """The console as a subprocess, a real broker, and the retained list."""
    address = run_console(f'managers = ["{manager.url}"]', exercise=False)

    def states_by_gateway() -> dict[str, str]:
        rows = httpx.get(f"{address}api/gateways", timeout=60).json()
        return {row["id"]: row["state"] for row in rows}

    wait_until(
        lambda: states_by_gateway() == {f"gw-{n}:1883": "well" for n in (1, 2, 3)}
    )
    areas = httpx.get(f"{address}api/health", timeout=60).json()["gateways"][0]["areas"]
    assert areas == [VALLEY]
    driver.get(f"{address}?lang=en")
    find(driver, "[data-tab=health]").click()
    wait_until(lambda: "as set" in text(driver, "tr[data-gateway='gw-1:1883']"))
    assert "about here" in text(driver, "tr[data-gateway='gw-3:1883']")
