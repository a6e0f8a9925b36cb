"""A restarted agent keeps a notice's criteria and reports damaged triage state."""

import json
import re
import subprocess
import sys
from pathlib import Path

from conftest import wait_until

from edge_agent import app
from edge_agent.config import parse_node_settings
from edge_agent.notices import NOTICES_STATE
from edge_agent.queue.file_lifecycle import read_counters
from edge_agent.sampler import TRIAGE_STATE
from service_runtime.settings import parse_toml
from spatial_mqtt.announcements import CriteriaNotice, Notice
from spatial_mqtt.senml import decode_pack

NODE = """
[node]
id = "kochi-0001"
latitude = 33.5588
longitude = 133.5312
[uplink]
gateway = "mqtt://127.0.0.1:9"
[queue]
path = "{folder}/queue.db"
window_s = 0
[simulation]
start = "2026-07-01T00:00:00+09:00"
speedup = 600.0
storm = "uniform"
duration_h = 6
total_mm = 200
[[triage.limit]]
sensor = "rain"
above = 0.5
level = 2
[[sensor]]
kind = "rain-gauge"
name = "rain"
pin = 17
"""


def test_criteria_survive_a_restart_and_damaged_state_is_logged(
    tmp_path: Path,
) -> None:
    """Without a link, too: the reason has the notice's criterion, not a default."""
    path = tmp_path / "node.toml"
    path.write_text(NODE.format(folder=tmp_path))
    node = parse_node_settings(parse_toml(path.read_text()))
    notice = Notice(criteria=CriteriaNotice(11.0, 12.0, 13.0, version=1.0))
    kept = {
        NOTICES_STATE: json.dumps({"/notice/1": notice.encode().decode()}),
        TRIAGE_STATE: '{"form":2,"rain":{"rain":{"tanks":[1]}}}',
    }
    queue = app.open_queue(node)
    queue.put([], kept)
    queue.close()

    log = tmp_path / "node.log"
    with log.open("wb") as to:
        agent = subprocess.Popen(
            [sys.executable, "-m", "edge_agent", "run", "--config", str(path)],
            stderr=to,
        )
    try:
        wait_until(lambda: read_counters(tmp_path / "queue.db").get(5, {}).get("put"))
    finally:
        agent.terminate()
        agent.wait(60)

    queue = app.open_queue(node)
    reasons = [decode_pack(m.payload).why or "" for m in queue.lease(500)]
    queue.close()
    assert any(">= special-warning criterion 13.0 mm, " in reason for reason in reasons)
    assert not any("assumed" in reason for reason in reasons)
    # It states its level where it is not the first reason.
    assert any(re.search(r"limit 1( \(level 2\))?: rain", each) for each in reasons)
    assert "triage starts with dry soil" in log.read_text()
