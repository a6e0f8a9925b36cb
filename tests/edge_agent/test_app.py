"""Composition of a node from its settings."""

import subprocess
import sys

BUILD = """
import sys
import threading
from gpiozero import Device
from gpiozero.pins.mock import MockFactory
from edge_agent import app, cli
from edge_agent.config import parse_node_settings
from edge_agent.cli import run

Device.pin_factory = MockFactory()
node = parse_node_settings({
    "node": {"id": "n", "latitude": 33.5, "longitude": 133.5},
    "uplink": {"gateway": "mqtt://127.0.0.1:1"},
    "queue": {"path": sys.argv[1]},
    "alarm": [{"name": "siren", "pin": 5}],
    "sensor": [{"kind": "wire", "name": "span", "pin": 27}],
})
coordinator, supervision = app.build_node(node)
coordinator.parts.queue.close()
print([name for name in sys.modules if name.startswith("edge_agent.simulator")])
print({"numpy", "pandas"} & set(sys.modules))
"""


def test_a_node_with_real_pins_imports_no_simulator(tmp_path: object) -> None:
    """Nor what sqlite-utils imports where it is installed, as on this machine."""
    result = subprocess.run(
        [sys.executable, "-c", BUILD, f"{tmp_path}/queue.db"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert result.stdout == "[]\nset()\n"
