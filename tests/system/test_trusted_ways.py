"""The way back to the slope, with certificates."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import wait_until
from trusted_system import GATEWAY, PROGRAMS, System, tls_section
from way_back_bench import Agent, judge_level, write_keys

pytestmark = [pytest.mark.system, pytest.mark.broker]

NOTIFY = """
[backend]
data = "{folder}/backend"
[notify]
brokers = ["mqtts://{manager.daemons}"]
key_file = "{folder}/office"
every_s = 1
calm_s = 1
"""
LAMP = """
[node]
id = "kochi-0001"
latitude = 33.5588
longitude = 133.5312
[uplink]
managers = ["mqtts://{manager.nodes}"]
[queue]
path = "{folder}/lamp.db"
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
OFFICE = {
    "m1": PROGRAMS["m1"],
    "gw-1": (*PROGRAMS["gw-1"][:2], GATEWAY + 'notice_keys = ["{folder}/office.pub"]'),
    "notify-0": ("backend_spark", "notify", NOTIFY),
}


@pytest.fixture
def office(tmp_path: Path) -> Iterator[System]:
    """A backend that notifies, a Manager and a gateway; the node is another's."""
    write_keys(tmp_path)
    made = System(tmp_path, OFFICE)
    yield made
    made.stop()


def test_level_lights_the_lamp_by_certificates_and_signatures(
    office: System, tmp_path: Path
) -> None:
    """From the backend's table over two brokers to the slope, and back to rest."""
    text = LAMP.format(**office.brokers, folder=tmp_path)
    text += tls_section(office.files["kochi-0001"])
    with Agent(tmp_path, text) as agent:
        wait_until(lambda: agent.status().get("is_served"), 120)
        judge_level(tmp_path / "backend", 4)
        wait_until(lambda: agent.status()["alarms"] == {"lamp": "on"}, 120)
        lit = agent.status()
        judge_level(tmp_path / "backend", 1)
        wait_until(lambda: agent.status()["alarms"] == {"lamp": "off"}, 120)

    assert str(lit["notice"]).startswith("level 4 by notice for /")
    assert lit["refused"] is None
