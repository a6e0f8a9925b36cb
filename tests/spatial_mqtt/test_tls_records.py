"""TLS records of a connection, as they pass a relay before a real broker."""

import os
import pwd
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Broker, free_port, wait_until
from soak.relay import Relay
from trust_bench import IssuingAuthority

from service_runtime.tls import Endpoint, TlsFiles
from spatial_mqtt.connection import Connection
from spatial_mqtt.transport import BaseConnectionHandler, Publication, Session

APPLICATION_DATA = 0x17
HEADER_BYTES = 5
SEGMENT_BYTES = 1400
"""What a segment carries, over IPv6 too."""

USUAL_BYTES = 1300
MESSAGES = 300


class Answers(BaseConnectionHandler):
    """Counts the messages that the broker acknowledged."""

    def __init__(self) -> None:
        self.count = 0

    def on_published(self, token: int, refused: str | None) -> None:
        self.count += 1


class RecordingRelay(Relay):
    """Keeps what the client sent."""

    def __init__(self, target_port: int) -> None:
        self.sent = bytearray()
        super().__init__(target_port)

    def on_chunk(self, chunk: bytes, *, is_sent: bool) -> None:
        if is_sent:
            self.sent += chunk

    def record_sizes(self) -> Iterator[int]:
        """Sizes of the records with application data."""
        at = 0
        while at + HEADER_BYTES <= len(self.sent):
            size = int.from_bytes(self.sent[at + 3 : at + HEADER_BYTES])
            if self.sent[at] == APPLICATION_DATA:
                yield size
            at += HEADER_BYTES + size


@pytest.fixture
def tls_broker(
    make_broker: Callable[..., Broker], tmp_path: Path
) -> tuple[int, TlsFiles]:
    """TLS port of a broker, and the files to connect to it."""
    authority, port = IssuingAuthority(tmp_path / "ca"), free_port()
    made = authority.issue("broker", "b", hosts=("127.0.0.1",))
    make_broker(
        f"listener {port} 127.0.0.1",
        f"certfile {made.certificate}",
        f"keyfile {made.key}",
        f"user {pwd.getpwuid(os.getuid()).pw_name}",
    )
    return port, TlsFiles(ca=authority.files("b").ca)


@pytest.mark.broker
def test_messages_written_together_take_records_of_a_segment(
    tls_broker: tuple[int, TlsFiles],
) -> None:
    """Else the first is acknowledged only when the last has arrived."""
    port, files = tls_broker
    relay, answers = RecordingRelay(port), Answers()
    connection = Connection(
        Endpoint("127.0.0.1", relay.port, tls=True), Session("node"), answers, files
    )
    connection.start()
    wait_until(lambda: connection.is_up)
    payload = bytes(range(256)) * 4
    connection.publish_together([Publication("a", payload)] * MESSAGES)
    wait_until(lambda: answers.count == MESSAGES)
    connection.stop()
    relay.close()

    sizes = list(relay.record_sizes())
    assert max(sizes) <= SEGMENT_BYTES
    # No more records than needed: each costs its header and its tag.
    assert len(sizes) <= sum(sizes) / USUAL_BYTES * 1.1 + 10
