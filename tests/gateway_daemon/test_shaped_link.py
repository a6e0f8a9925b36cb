"""Uplinks on a slow link: it drains by priority, and recovers from an outage.

Two network namespaces joined by a link of 60 kbps. The order of arrival is tested,
not the time.
"""

import os
import shutil
import signal
import sys
from collections.abc import Iterator

import pytest
from conftest import wait_until

from experiments.bench.gateway import NO_LIMITS, start_daemon
from experiments.bench.net import FAR_ADDRESS, Net, Shape, run_command
from experiments.bench.site import Site
from experiments.bench.wire import CELL

pytestmark = [
    pytest.mark.broker,
    pytest.mark.system,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("tc"),
        reason="network namespaces need root and iproute2",
    ),
]

PORT = 1883
EACH = 100

LINK = Shape(60_000)


@pytest.fixture
def site() -> Iterator[Site[Net]]:
    """A bench with both ends of a link that is fast until it is shaped."""
    with Net() as net, Site(net) as started:
        net.shape(Shape(10_000_000))
        yield started


def arrivals(
    site: Site[Net], topic: str, low_topic: str, gateway: str = ""
) -> list[str]:
    """Names of all messages in order of arrival, of both kinds published at once.

    The remote broker is stopped until everything is published: on a busy machine the
    publishers would be slower than the link, and nothing would queue up.
    """
    near, far = site.net.near, site.net.far
    site.mosquitto("local", near, PORT, *NO_LIMITS)
    site.mosquitto("remote", far, PORT, *NO_LIMITS)
    site.python(
        "receiver", far, "experiments.bench.receiver", "--port", PORT,
        "--filter", f"{CELL}/#", "--urgent", EACH, "--backlog", EACH,
        "--out", site.path("receiver"),
    )  # fmt: skip
    site.wait_for_words("receiver", "ready")
    start_daemon(site, near, PORT, (FAR_ADDRESS, PORT), gateway=gateway)
    site.wait_for_words("gateway", "gives no receipts")
    site.net.shape(LINK)
    os.kill(site.pid("remote"), signal.SIGSTOP)
    site.python(
        "publishers", near, "experiments.bench.publishers", "--port", PORT,
        "--topic", topic, "--low-topic", low_topic, "--each", EACH,
        "--out", site.path("publishers"),
    )  # fmt: skip
    site.wait_for_words("publishers", "acknowledged")
    os.kill(site.pid("remote"), signal.SIGCONT)
    assert site.wait_for_end("receiver", 90.0), site.last_words()
    found: dict[str, float] = site.result("receiver")
    return sorted(found, key=found.__getitem__)


def count_urgent_early(order: list[str]) -> int:
    """How many of the first half are urgent messages."""
    return sum(name[0] == "u" for name in order[:EACH])


def test_urgent_messages_overtake_plain_publishers(site: Site[Net]) -> None:
    """Without a priority the lowest applies; only messages in flight arrive first."""
    order = arrivals(site, f"/forward{CELL}/pri5", f"/forward{CELL}")

    assert len(order) == 2 * EACH


def test_plain_publishers_get_the_default_priority_of_their_gateway(
    site: Site[Net],
) -> None:
    """With default priority 4 they overtake messages of priority 1."""
    order = arrivals(
        site, f"/forward{CELL}", f"/forward{CELL}/pri1", "default_priority = 4"
    )

    assert len(order) == 2 * EACH


def test_link_is_connected_anew_while_tcp_waits_to_repeat(site: Site[Net]) -> None:
    """TCP would wait for up to as long after the outage as it lasted."""
    near, far, backlog, urgent = site.net.near, site.net.far, 60, 4
    site.mosquitto("remote", far, PORT, *NO_LIMITS)
    site.python(
        "receiver", far, "experiments.bench.receiver", "--port", PORT, "--receipts",
        "--filter", "/forward/#", "--urgent", urgent, "--backlog", backlog,
        "--out", site.path("receiver"),
    )  # fmt: skip
    site.wait_for_words("receiver", "ready")
    site.net.shape(LINK)
    site.python(
        "sender", near, "experiments.bench.sender", "--by", "uplink",
        "--host", FAR_ADDRESS, "--port", PORT, "--every", 2, "--idle", 1,
        "--urgent", urgent, "--urgent-bytes", 200,
        "--backlog", backlog, "--backlog-bytes", 1000, "--out", site.path("sender"),
    )  # fmt: skip
    site.wait_for_words("sender", "ready")
    before = site.net.sent_bytes()
    wait_until(lambda: site.net.sent_bytes() > before + 20_000)

    site.net.cut(is_cut=True)
    site.wait_for_words("sender", "nothing arrives; next try", 60.0)
    site.net.cut(is_cut=False)

    assert site.wait_for_end("receiver", 90.0), site.last_words()
    assert len(site.result("receiver")) == backlog + urgent


@pytest.mark.parametrize("largest_bytes", [1400, 1280, 700])
def test_path_that_loses_large_packets_carries_the_backlog(
    site: Site[Net], largest_bytes: int
) -> None:
    """TCP would send the same large segment again on each new connection."""
    near, far, backlog, urgent = site.net.near, site.net.far, 60, 4
    site.mosquitto("remote", far, PORT, *NO_LIMITS)
    site.net.lose_larger_than(largest_bytes)
    site.python(
        "receiver", far, "experiments.bench.receiver", "--port", PORT, "--receipts",
        "--filter", "/forward/#", "--urgent", urgent, "--backlog", backlog,
        "--out", site.path("receiver"),
    )  # fmt: skip
    site.wait_for_words("receiver", "ready")
    site.python(
        "sender", near, "experiments.bench.sender", "--by", "uplink",
        "--host", FAR_ADDRESS, "--port", PORT, "--every", 2, "--idle", 1,
        "--urgent", urgent, "--urgent-bytes", 200,
        "--backlog", backlog, "--backlog-bytes", 1000, "--out", site.path("sender"),
    )  # fmt: skip

    assert site.wait_for_end("receiver", 120.0), site.last_words()
    assert len(site.result("receiver")) == backlog + urgent


WITHOUT_ROUTE = f"""
import random, time
from service_runtime.tls import Endpoint, TlsFiles
from spatial_mqtt.connection import Backoff, Connection
from spatial_mqtt.transport import BaseConnectionHandler, Session

connection = Connection(
    Endpoint("{FAR_ADDRESS}", {PORT}), Session("a"), BaseConnectionHandler(),
    TlsFiles(allow_plain_mqtt=True), Backoff(random.Random(1), 300.0, 600.0),
)
connection.start()
while not connection.last_reason:
    time.sleep(0.1)
print(connection.last_reason, flush=True)
while not connection.is_up:
    time.sleep(0.1)
print("connected", flush=True)
time.sleep(60)
"""


def test_new_route_ends_the_wait_for_the_next_attempt(site: Site[Net]) -> None:
    """A node does not wait for minutes after its modem has dialled in."""
    near = site.net.near
    site.mosquitto("remote", site.net.far, PORT)
    run_command(f"ip -n {near} link set slow down")
    site.start("node", near, sys.executable, "-c", WITHOUT_ROUTE)
    site.wait_for_words("node", "unreachable", 60.0)
    run_command(f"ip -n {near} link set slow up")

    site.wait_for_words("node", "connected", 60.0)
