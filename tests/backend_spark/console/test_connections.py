"""Half requests, endless heads and clients that do not read must stop nothing."""

import contextlib
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from attack_table import timed
from conftest import free_port, wait_until
from console_workspace import Clock, Workspace, log_in, make_test_services, serve

from backend_spark.console import http

HALF_HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"
HALF_BODY = b"POST /api/login HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"
WHOLE = b"GET /api/session HTTP/1.1\r\nHost: x\r\n\r\n"
BIG = b"GET /static/map-worker.mjs HTTP/1.1\r\nHost: x\r\n\r\n"
PLACES = 30
TIMEOUT_S = 1.0

Opener = Callable[[bytes], socket.socket]


@pytest.fixture(scope="module")
def client(
    tables: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """A client of a console on a real port that is logged in."""
    workspace = Workspace(tmp_path_factory.mktemp("connections"), free_port())
    shutil.copytree(tables, workspace.data)  # the console writes beside the tables
    parts = make_test_services(workspace, Clock(), workspace.with_accounts())
    parts.refresh()
    with serve(parts, workspace.port) as client:
        log_in(client, "a-chief")
        yield client


@pytest.fixture
def few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer places, so that fewer connections take all of them."""
    monkeypatch.setattr(http, "SHARED_PLACES", PLACES)


@pytest.fixture
def short_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shorter time for a request."""
    monkeypatch.setattr(http, "CLIENT_TIMEOUT_S", TIMEOUT_S)


@pytest.fixture
def send(client: httpx.Client) -> Iterator[Opener]:
    """Function that opens a connection and sends some bytes."""
    with ExitStack() as stack:

        def opener(sent: bytes) -> socket.socket:
            address = ("127.0.0.1", client.base_url.port or 0)
            opened = stack.enter_context(socket.create_connection(address, 10))
            opened.sendall(sent)
            return opened

        yield opener


def is_closed(opened: socket.socket) -> bool:
    """Whether the console has closed a connection."""
    opened.settimeout(0.05)
    try:
        return opened.recv(4096) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@pytest.mark.usefixtures("few_places")
@pytest.mark.parametrize("sent", [b"", HALF_HEAD, HALF_BODY, WHOLE])
@pytest.mark.attack(
    "console: half requests on all connections",
    "1,100 of them: no login in 30 s",
)
def test_waiting_connections_do_not_keep_others_out(
    client: httpx.Client,
    send: Opener,
    caplog: pytest.LogCaptureFixture,
    report: Callable[..., None],
    sent: bytes,
) -> None:
    """A new connection takes the place of the one that has waited longest."""
    opened = [send(sent) for _ in range(3 * PLACES)]
    statuses: list[int] = []

    def connect() -> None:
        with httpx.Client(
            base_url=client.base_url, cookies=client.cookies, timeout=60
        ) as other:
            statuses.append(other.get("/api/cells").status_code)

    waits_s = timed(connect, 5)
    assert statuses == [200] * 5
    assert max(waits_s) < http.CLIENT_TIMEOUT_S / 2
    report(bystander_s=waits_s)
    wait_until(lambda: is_closed(opened[0]))
    assert "Traceback" not in caplog.text


def test_new_connection_is_served_beside_answers(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No place is free, and no connection waits for its client."""
    monkeypatch.setattr(http, "SHARED_PLACES", 2)
    with ExitStack() as stack:
        streams = [
            stack.enter_context(client.stream("GET", "/api/live")).iter_bytes()
            for _ in range(3)
        ]
        for events in streams:
            next(events)
        other = stack.enter_context(
            httpx.Client(base_url=client.base_url, cookies=client.cookies, timeout=60)
        )
        for _ in range(2):
            answer = other.get("/api/cells")
            assert answer.status_code == 200
            assert answer.content
            # Else the client may send its next request on the closed connection.
            assert answer.headers["connection"] == "close"
        for events in streams:
            assert b"event: now" in next(events)


@pytest.mark.usefixtures("few_places")
def test_event_stream_keeps_its_place(client: httpx.Client, send: Opener) -> None:
    """While half requests take each other's places."""
    with client.stream("GET", "/api/live") as stream:
        events = stream.iter_bytes()
        next(events)
        opened = [send(HALF_HEAD) for _ in range(3 * PLACES)]
        for _ in range(2):
            assert b"event: now" in next(events)
        assert len(opened) == 3 * PLACES


@pytest.mark.usefixtures("short_time")
@pytest.mark.parametrize("sent", [b"", HALF_HEAD, HALF_BODY])
def test_half_request_is_closed_in_time(send: Opener, sent: bytes) -> None:
    """Also when single bytes keep coming."""
    opened = send(sent)
    begin_s = time.monotonic()
    with contextlib.suppress(ConnectionError):
        while not is_closed(opened):
            opened.sendall(b"x")
            assert time.monotonic() - begin_s < 10 * TIMEOUT_S

    assert time.monotonic() - begin_s > TIMEOUT_S / 2


def test_client_that_does_not_read_is_closed(
    client: httpx.Client, send: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that reads slowly gets everything, on a slow machine too."""
    monkeypatch.setattr(http, "CLIENT_TIMEOUT_S", 5 * TIMEOUT_S)
    slow, size = send(BIG * 50), 0
    slow.settimeout(10)
    body = client.get(
        "/static/map-worker.mjs", headers={"Accept-Encoding": "identity"}
    ).content
    while size < 50 * len(body):
        part = slow.recv(256 * 1024)
        assert part, f"closed after {size} bytes"
        size += len(part)
        time.sleep(0.02)
    monkeypatch.setattr(http, "CLIENT_TIMEOUT_S", TIMEOUT_S)
    idle = send(BIG * 50)
    time.sleep(3 * TIMEOUT_S)
    # What the kernel has buffered can be read, then the connection is at its end.
    idle.settimeout(10)
    with contextlib.suppress(ConnectionError):
        got = b"".join(iter(lambda: idle.recv(1 << 20), b""))
        assert len(got) < 50 * len(body)


def test_long_head_is_refused(send: Opener) -> None:
    """At most 16 KiB."""
    opened = send(HALF_HEAD + b"X-Long: " + b"x" * 20_000)
    opened.settimeout(10)

    assert opened.recv(4096).startswith(b"HTTP/1.1 400 ")


def test_unit_leaves_room_for_the_connections() -> None:
    """Connections and those that wait are below systemd's limit of 1,024 files."""
    assert http.MAX_CONNECTIONS + http.BACKLOG <= 1024 - 400
