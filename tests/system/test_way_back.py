"""Notices: a level in the backend's table switches a lamp on the slope."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from conftest import Broker, wait_until
from notice_bench import CELL, Agent, write_keys, write_level
from programs import Client, Programs

from backend_spark.console.nodes import NodeStates
from backend_spark.console.panels import WayBack
from backend_spark.notice_state import DRILLS_FILE, DrillRequests
from backend_spark.scoring.decode import decode_messages
from backend_spark.tables.schemas import BRONZE, SILVER
from spatial_mqtt.announcements import Drill, Notice
from spatial_mqtt.client import fetch_retained
from spatial_mqtt.senml import decode_pack
from spatial_mqtt.topics import cell_topic, drill_topic, notice_topic, offer_topic
from spatial_mqtt.transport import IncomingMessage

pytestmark = pytest.mark.broker

NODE = """
[node]
id = "kochi-0001"
latitude = 33.5588
longitude = 133.5312
[uplink]
{uplink}
gather_s = 0
[queue]
path = "{folder}/queue.db"
window_s = 0
[sampling]
fast_interval_s = 1
[notices]
keys = ["{folder}/office.pub"]
[[alarm]]
name = "lamp"
pin = 5
[[sensor]]
kind = "node"
name = "box"
interval_s = 3600
"""


class Deployment(NamedTuple):
    """The brokers of a Manager and of a gateway, and an analyst behind it."""

    manager: Broker
    local: Broker
    analyst: Client


@pytest.fixture
def deployment(
    make_broker: Callable[[], Broker], tmp_path: Path
) -> Iterator[Deployment]:
    """A Manager, a gateway with the backend's public key, and an analyst."""
    write_keys(tmp_path)
    programs = Programs(tmp_path)
    manager, local, distributed = make_broker(), make_broker(), make_broker()
    programs.start(
        "manager",
        "manager",
        f'[manager]\nbroker = "{manager.url}"\ndata = "{tmp_path}/manager"\n'
        f'[[broker]]\ntopic = "/"\nurl = "{distributed.url}"\n',
    )
    programs.start(
        "gateway",
        "run",
        f'[gateway]\nid = "gw"\nbroker = "{local.url}"\n'
        f'managers = ["{manager.url}"]\nareas = ["/1"]\ndata = "{tmp_path}/gw"\n'
        f'notice_keys = ["{tmp_path}/office.pub"]\n',
    )
    fetch_retained(local.endpoint, offer_topic("gw"), "probe", 60)
    yield Deployment(manager, local, Client(distributed.endpoint, "analyst", "/1/#"))
    programs.kill_all()


@pytest.fixture
def backend(tmp_path: Path, deployment: Deployment) -> Iterator[Path]:
    """`backend-spark notify` over an empty table; yields its data folder."""
    data, path = tmp_path / "backend", tmp_path / "backend.toml"
    path.write_text(
        f'[backend]\ndata = "{data}"\n'
        f'[notify]\nbrokers = ["{deployment.manager.url}"]\n'
        f'key_file = "{tmp_path}/office"\nevery_s = 1\ncalm_s = 1\n'
    )
    command = [sys.executable, "-m", "backend_spark", "notify", "--config", str(path)]
    with (tmp_path / "notify.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    yield data
    process.terminate()
    process.wait(60)


def forge(broker: Broker) -> None:
    """Publish an unsigned notice that withdraws the level."""
    topic = notice_topic(cell_topic(CELL))
    forged = Notice(at_s=time.time() + 60, withdrawn=True).encode()
    intruder = Client(broker.endpoint, "intruder")
    intruder.publish(topic, forged, retain=True)
    at = broker.endpoint
    wait_until(lambda: fetch_retained(at, topic, "probe", 9) == forged)
    intruder.connection.stop()


def test_level_in_the_table_speeds_up_sampling_and_switches_the_lamp(
    deployment: Deployment, backend: Path, tmp_path: Path
) -> None:
    """On, off when it is over; unsigned notices are refused."""
    got = deployment.analyst.got
    uplink = f'managers = ["{deployment.manager.url}"]'
    with Agent(tmp_path, NODE.format(uplink=uplink, folder=tmp_path)) as agent:
        wait_until(lambda: got and agent.status().get("is_served"), 120)
        calm, before = len(got), agent.status()
        write_level(backend, 4)
        wait_until(lambda: agent.status()["alarms"] == {"lamp": "on"}, 120)
        wait_until(lambda: len(got) >= calm + 3)
        lit, shown = agent.status(), agent.shown()
        forge(deployment.manager)
        forge(deployment.local)
        wait_until(lambda: agent.status()["refused"])
        forged = agent.status()
        write_level(backend, 1)
        wait_until(lambda: agent.status()["alarms"] == {"lamp": "off"}, 120)
        after = agent.status()

    assert (before["alarms"], before["notice"]) == ({"lamp": "off"}, None)
    assert str(lit["notice"]).startswith("level 4 by notice for /")
    assert str(lit["notice"]) in shown
    assert "  alarm lamp: on" in shown
    assert "must be signed" in str(forged["refused"])
    assert forged["alarms"] == {"lamp": "on"}
    assert after["notice"] is None
    assert {decode_pack(m.payload).priority for m in got} == {1, 2}


def shown_way(data: Path, messages: Sequence[IncomingMessage]) -> dict[str, Any]:
    """The way back of the cell that the console shows after these messages."""
    packs = [decode_pack(m.payload) for m in messages]
    rows = [
        dict.fromkeys(BRONZE.names)
        | {
            "node": p.id.node,
            "boot": p.id.boot,
            "seq": p.id.seq,
            "pri": p.priority,
            "topic": m.topic,
            "payload": m.payload,
            "received_at": datetime.now(UTC),
        }
        for p, m in zip(packs, messages, strict=True)
    ]
    parsed = decode_messages(pa.Table.from_pylist(rows, BRONZE))
    states = NodeStates()
    states.add_readings(parsed.select(SILVER.names))
    drills = DrillRequests(data / "console" / DRILLS_FILE)
    nodes = states.by_id.values()
    return WayBack(data, drills).of_cell(CELL.token, nodes, time.time())


class DrillBench(NamedTuple):
    """A node that is served, the backend's folder, and what an analyst received."""

    agent: Agent
    data: Path
    got: list[IncomingMessage]

    def way(self) -> dict[str, Any]:
        """The way back that the console shows now."""
        return shown_way(self.data, list(self.got))

    def wait_for_lamp(self, state: str) -> dict[str, Any]:
        """Wait until the node and its reports say so; returns the status."""
        wait_until(lambda: self.agent.status()["alarms"] == {"lamp": state}, 120)
        status = self.agent.status()
        wait_until(
            lambda: any(
                node["outputs"] == {"lamp": state} for node in self.way()["nodes"]
            ),
            60,
        )
        return status

    def start_drill(self) -> None:
        """Request a drill of level 4 as the console does."""
        requests = DrillRequests(self.data / "console" / DRILLS_FILE)
        requests.start(CELL.token, 4, 600.0, time.time())


@pytest.fixture
def bench(
    deployment: Deployment, backend: Path, tmp_path: Path
) -> Iterator[DrillBench]:
    """A node behind the gateway; the backend's publisher runs."""
    uplink = f'managers = ["{deployment.manager.url}"]'
    with Agent(tmp_path, NODE.format(uplink=uplink, folder=tmp_path)) as agent:
        bench = DrillBench(agent, backend, deployment.analyst.got)
        wait_until(lambda: bench.got and agent.status().get("is_served"), 120)
        yield bench


def test_drill_is_followed_to_the_lamp_and_yields_to_a_real_level(
    deployment: Deployment, bench: DrillBench
) -> None:
    """The console knows every stage; level and sampling stay as they are."""
    bench.start_drill()
    in_drill, way = bench.wait_for_lamp("drill"), bench.way()
    shown = bench.agent.shown()
    write_level(bench.data, 4)
    bench.wait_for_lamp("on")
    real = bench.way()

    assert in_drill["drill"] == "DRILL of level 4, not an alarm"
    assert (in_drill["level"], in_drill["notice"]) == (1, None)
    assert "DRILL of level 4" in shown
    assert way["notice"] is None
    (node,), (accepted,) = way["nodes"], way["drill"]["accepted"]
    assert accepted["broker"] == str(deployment.manager.endpoint)
    assert node["gateway"] == str(deployment.local.endpoint)
    assert node["drill"]["is_newest"]
    begin_s = way["drill"]["at_s"]
    assert begin_s <= accepted["at_s"] <= time.time()
    assert begin_s <= node["drill"]["received_s"] <= time.time()
    (node,) = real["nodes"]
    assert real["notice"]["accepted"]
    assert (node["notice"]["level"], node["notice"]["is_newest"]) == (4, True)
    assert real["drill"]["in_force"]


def test_drill_without_signature_switches_nothing(
    deployment: Deployment, bench: DrillBench
) -> None:
    """Neither at the Manager nor at the gateway's own broker."""
    forged = Drill(5, time.time() + 300, time.time()).encode()
    topic = drill_topic(cell_topic(CELL))
    for broker in (deployment.manager, deployment.local):
        intruder = Client(broker.endpoint, "intruder")
        intruder.publish(topic, forged, retain=True)
        at = broker.endpoint
        wait_until(lambda at=at: fetch_retained(at, topic, "probe", 9) == forged)
        intruder.connection.stop()
    wait_until(lambda: "must be signed" in str(bench.agent.status()["refused"]), 60)

    assert bench.agent.status()["alarms"] == {"lamp": "off"}
    assert bench.agent.status()["drill"] is None


def test_nodes_own_rules_switch_the_lamp_without_a_network(
    tmp_path: Path,
) -> None:
    """The wire breaks while neither gateway nor backend is reachable."""
    write_keys(tmp_path)
    text = NODE.format(uplink='gateway = "mqtt://127.0.0.1:9"', folder=tmp_path)
    cut = (
        '[simulation]\nstart = "2026-07-01T00:00:00+09:00"\nstorm = "quiet"\n'
        "wire_break_after_h = 0.001\n"
        '[[sensor]]\nkind = "wire"\nname = "span"\npin = 27\n'
    )
    with Agent(tmp_path, text + cut) as agent:
        wait_until(lambda: agent.status().get("alarms") == {"lamp": "on"}, 240)
        lit = agent.status()

    assert lit["level"] == 5
    assert lit["is_served"] is False
