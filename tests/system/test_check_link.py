"""`edge-agent check --link` against a real Manager, gateways and brokers."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Broker, wait_until
from programs import Client, Programs

from edge_agent.triage.engine import Triage
from spatial_mqtt.client import fetch_retained
from spatial_mqtt.directory import decode_gateways
from spatial_mqtt.senml import Pack, decode_pack
from spatial_mqtt.topics import GATEWAY_INFO, custody_topic, offer_topic

pytestmark = pytest.mark.broker

NODE = """
[node]
id = "kochi-0001"
latitude = 33.5588
longitude = 133.5312
[uplink]
{uplink}
[queue]
path = "{folder}/queue.db"
[simulation]
start = "2026-07-01T00:00:00+09:00"
[[sensor]]
kind = "wire"
name = "span"
pin = 27
"""


class Deployment:
    """A Manager, a near and a far gateway, and the broker behind them."""

    def __init__(self, make_broker: Callable[[], Broker], folder: Path) -> None:
        self.programs, self.folder = Programs(folder), folder
        self.manager, self.distributed = make_broker(), make_broker()
        self.local = {"near": make_broker(), "far": make_broker()}
        self.programs.start(
            "manager",
            "manager",
            f'[manager]\nbroker = "{self.manager.url}"\ndata = "{folder}/manager"\n'
            f'[[broker]]\ntopic = "/"\nurl = "{self.distributed.url}"\n',
        )
        for name, area in (("near", "/1/2/2"), ("far", "/1")):
            self.programs.start(
                name,
                "run",
                f'[gateway]\nid = "{name}"\nbroker = "{self.local[name].url}"\n'
                f'managers = ["{self.manager.url}"]\nareas = ["{area}"]\n'
                f'data = "{folder}/{name}"\n',
            )
            fetch_retained(self.local[name].endpoint, offer_topic(name), "probe", 60)
        wait_until(lambda: len(self.directory()) == 2)

    def directory(self) -> tuple[object, ...]:
        payload = fetch_retained(self.manager.endpoint, GATEWAY_INFO, "probe", 60)
        return decode_gateways(payload)

    def check(self, *more: str, uplink: str = "") -> tuple[int, dict[str, Any]]:
        path = self.folder / "node.toml"
        managers = f'managers = ["mqtt://127.0.0.1:9", "{self.manager.url}"]'
        path.write_text(NODE.format(uplink=uplink or managers, folder=self.folder))
        arguments = ["check", "--json", "--link", *more, "--config", str(path)]
        done = subprocess.run(
            [sys.executable, "-m", "edge_agent", *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)


@pytest.fixture
def deployment(
    make_broker: Callable[[], Broker], tmp_path: Path
) -> Iterator[Deployment]:
    made = Deployment(make_broker, tmp_path)
    yield made
    made.programs.kill_all()


def packs(client: Client) -> list[Pack]:
    return [decode_pack(message.payload) for message in client.got]


def test_nearest_gateway_gives_a_receipt_for_the_test_message(
    deployment: Deployment,
) -> None:
    """The report has gateway, area, round trip and rate; the live session stays up."""
    analyst = Client(deployment.distributed.endpoint, "analyst", "/1/#")
    session = deployment.local["near"].endpoint
    agent = Client(session, "kochi-0001", custody_topic("kochi-0001"))
    status, report = deployment.check()
    link = report["link"]
    near = link["gateways"][0]
    wait_until(lambda: len(analyst.got) == 18)  # the test message and the burst
    tested = next(p for p in packs(analyst) if str(p.id) == near["message_id"])

    assert (status, report["verdict"]) == (0, "pass")
    assert link["managers"][0]["problem"] is not None
    assert link["managers"][1]["problem"] is None
    assert link["chosen"] == str(session)
    assert (near["area"], near["receipted"]) == ("/1/2/2", True)
    assert near["connect_s"] > 0
    assert near["round_trip_s"] >= 0
    assert near["burst_bytes"] >= 16_000
    assert link["used_bytes"] > near["burst_bytes"]
    assert agent.connection.is_up
    assert tested.priority == 1
    assert Triage([]).assess(tested.readings, tested.time_s).level == 1
    assert all(isinstance(r.value, str) for p in packs(analyst) for r in p.readings)


def test_gateway_without_its_daemon_is_reported_and_skipped(
    deployment: Deployment,
) -> None:
    """The next gateway is chosen; the report gives the nearest one's problem."""
    deployment.programs.kill("near")
    status, report = deployment.check("--burst", "0")
    chosen = [g for g in report["link"]["gateways"] if g["problem"] is None]
    lost = [g for g in report["link"]["gateways"] if g["problem"] is not None]

    assert status == 0
    assert [g["area"] for g in chosen] == ["/1"]
    assert chosen[0]["burst_bytes"] == 0
    assert all("daemon" in g["problem"] for g in lost)


@pytest.mark.long
def test_dead_gateway_fails_the_check(deployment: Deployment) -> None:
    """An installer must not leave a node that cannot be reached."""
    deployment.local["near"].kill()
    uplink = f'gateway = "{deployment.local["near"].url}"'
    status, report = deployment.check(uplink=uplink)
    deployment.local["near"].start()

    assert (status, report["verdict"]) == (1, "fail")
    assert "cannot be reached" in report["link"]["gateways"][0]["problem"]
    assert report["link"]["managers"] == []


@pytest.mark.long
def test_plain_broker_is_reported_as_serving_without_receipts(
    deployment: Deployment, make_broker: Callable[[], Broker]
) -> None:
    """A message held only in a broker's memory is not counted as receipted."""
    plain = make_broker()
    listener = Client(plain.endpoint, "listener", "#")
    status, report = deployment.check("--burst", "0", uplink=f'gateway = "{plain.url}"')

    assert status == 0
    assert report["link"]["gateways"][0]["receipted"] is False
    assert len(packs(listener)) == 1
