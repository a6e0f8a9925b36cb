"""Chunks of update bundles."""

import time
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
from conftest import wait_until

from gateway_daemon.gateway.notices_and_updates import UpdateServer, read_chunk
from service_runtime.watchdog import LoopWatchdog
from spatial_mqtt.announcements import FileChunkRequest
from spatial_mqtt.topics import file_chunk_topic, file_request_topic
from spatial_mqtt.transport import IncomingMessage


@pytest.mark.parametrize("at", [0, 5, 999, 1000])
def test_chunk_holds_the_bytes_at_its_offset(tmp_path: Path, at: int) -> None:
    """Beyond the end of the file it is empty."""
    data = bytes(range(250)) * 4
    (tmp_path / f"{'0' * 64}.update").write_bytes(data)

    assert (
        read_chunk(tmp_path, FileChunkRequest("0" * 64, at, 300)).data
        == data[at : at + 300]
    )


@pytest.mark.parametrize("name", ["0" * 64, "../secret", "/etc/passwd", ""])
def test_only_bundles_are_served(tmp_path: Path, name: str) -> None:
    """A client cannot read other files."""
    (tmp_path / "served").mkdir()
    (tmp_path / "secret.update").write_bytes(b"secret")
    assert read_chunk(tmp_path / "served", FileChunkRequest(name, 0)).data == b""


def test_hostile_request_does_not_end_the_server(tmp_path: Path) -> None:
    """No file has that offset; a retained request would arrive at each connection."""
    (tmp_path / f"{'0' * 64}.update").write_bytes(b"bundle")
    connect = Mock()
    server = UpdateServer("gw", tmp_path, connect, LoopWatchdog(time.monotonic))
    server.start()
    genuine = FileChunkRequest("0" * 64, 7).encode()
    for name, payload, retain in (
        ("rogue", msgspec.msgpack.encode(["0" * 64, 2**63]), False),
        ("retainer", genuine, True),
        ("node", genuine, False),
    ):
        topic = file_request_topic(name)
        message = IncomingMessage(topic, payload, 0, retain, None, None, None, (1, 1))
        connect.call_args.args[1].on_message(message)
    publish = connect.return_value.publish
    wait_until(lambda: publish.called, 10)
    server.stop()

    assert [each.args[0].topic for each in publish.call_args_list] == [
        file_chunk_topic("node")
    ]
