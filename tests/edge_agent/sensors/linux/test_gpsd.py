import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from edge_agent.sensors.gnss import decode
from edge_agent.sensors.linux import LinuxGpsd

VERSION = b'{"class":"VERSION","release":"3.22","rev":"3.22","proto_major":3}\r\n'
DEVICES = (
    b'{"class":"DEVICES","devices":[{"class":"DEVICE","path":"/dev/ttyACM0"}]}\r\n'
)
WATCH = b'{"class":"WATCH","enable":true,"json":false}\r\n'
POLL = (
    b'{"class":"POLL","time":"2026-06-04T10:31:00.2Z","active":1,"tpv":[{"class":"TPV",'
    b'"device":"/dev/ttyACM0","mode":3,"time":"2026-06-04T10:31:00.000Z",'
    b'"lat":35.12,"lon":139.65,"altMSL":110.9,"eph":4.2}],"sky":[]}\r\n'
)


class FakeGpsd:
    """A TCP server that sends recorded lines of gpsd."""

    def __init__(self, *answers: bytes) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = self._server.getsockname()
        self.received = b""
        self._answers = answers
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.close()
        self._thread.join()

    def _serve(self) -> None:
        for answer in self._answers:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection, contextlib.suppress(ConnectionError):
                connection.sendall(VERSION)
                while b"?POLL;\r\n" not in self.received:
                    self.received += connection.recv(100)
                self.request, self.received = self.received, b""
                connection.sendall(answer)
                if answer:
                    continue  # and close the connection
                connection.recv(100)


@pytest.fixture
def daemon(request: pytest.FixtureRequest) -> Iterator[FakeGpsd]:
    """A server with the answers of the test, one for each connection."""
    server = FakeGpsd(*request.param)
    yield server
    server.close()


@pytest.mark.parametrize("daemon", [(DEVICES + WATCH + POLL,)], indirect=True)
def test_poll_skips_greetings(daemon: FakeGpsd) -> None:
    """VERSION, DEVICES and WATCH precede the line of POLL."""
    gpsd = LinuxGpsd(daemon.address, timeout_s=5)
    assert decode(gpsd.poll()).latitude_deg == 35.12
    gpsd.close()
    assert daemon.request == b'?WATCH={"enable":true,"json":false};\r\n?POLL;\r\n'


@pytest.mark.parametrize("daemon", [(b"", POLL)], indirect=True)
def test_poll_reconnects_after_a_time_out(daemon: FakeGpsd) -> None:
    """The error names the address; the next poll opens a new connection."""
    gpsd = LinuxGpsd(daemon.address, timeout_s=0.2)
    with pytest.raises(OSError, match=r"127\.0\.0\.1:\d+: timed out"):
        gpsd.poll()
    assert decode(gpsd.poll()).longitude_deg == 139.65
    gpsd.close()


@pytest.mark.parametrize("daemon", [(POLL, POLL, POLL)], indirect=True)
def test_restart_between_two_polls_loses_no_reading(daemon: FakeGpsd) -> None:
    """A closed connection is opened again at once."""
    gpsd = LinuxGpsd(daemon.address, timeout_s=5)
    for _ in range(3):
        assert decode(gpsd.poll()).longitude_deg == 139.65
    gpsd.close()


@pytest.mark.parametrize("daemon", [(b"x" * 70000,)], indirect=True)
def test_line_without_an_end_is_an_error(daemon: FakeGpsd) -> None:
    """For any server on that port, memory stays bounded."""
    gpsd = LinuxGpsd(daemon.address, timeout_s=5)
    with pytest.raises(OSError, match="a line without an end"):
        gpsd.poll()


@pytest.mark.parametrize("daemon", [(VERSION * 100,)], indirect=True)
def test_server_that_never_answers_poll_is_an_error(daemon: FakeGpsd) -> None:
    """It gives up after a hundred other lines."""
    gpsd = LinuxGpsd(daemon.address, timeout_s=5)
    with pytest.raises(OSError, match="no answer to"):
        gpsd.poll()


def test_missing_daemon_is_reported() -> None:
    """The error contains the address and the refused connection."""
    server = socket.create_server(("127.0.0.1", 0))
    address = server.getsockname()
    server.close()
    with pytest.raises(OSError, match=r"127\.0\.0\.1:\d+: .*refused"):
        LinuxGpsd(address).poll()
