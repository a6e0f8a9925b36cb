"""Lanes that a gateway finds at its start, by their files."""

from pathlib import Path

from gateway_daemon.app import _stored_lanes
from spatial_mqtt.directory import BrokerInfo


def test_lane_without_its_file_is_opened(tmp_path: Path) -> None:
    """Its messages have receipts, in the log or in what a power cut left of a repair.

    Files that were set aside are no lanes.
    """
    lanes = tmp_path / "lanes"
    lanes.mkdir()
    for name in (
        "a-1883.db",
        "a-1883.db-wal",
        "b-1883.db-wal",
        "c-1883.db.damaged-1",
        "c-1883.db.damaged-1-wal",
        "d-1883.db.damaged-1",
        "d-1883.db.salvaged",
        "nowhere.db",
    ):
        (lanes / name).touch()

    assert list(_stored_lanes(tmp_path)) == [
        BrokerInfo("a", 1883),
        BrokerInfo("b", 1883),
        BrokerInfo("d", 1883),
    ]
