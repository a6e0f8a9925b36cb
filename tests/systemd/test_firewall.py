"""The firewall of a gateway, in network namespaces with a real kernel filter."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

RULES = Path(__file__).parents[2] / "systemd/firewall/yamamori.nft"
GATEWAY, FLOODER, BYSTANDER = "10.231.79.1", "10.231.79.2", "10.231.79.3"
NODE_PORT, METRICS_PORT = 8883, 9464
SERVE = """
import selectors, socket, sys
selector = selectors.DefaultSelector()
kept = []
for port in map(int, sys.argv[1:]):
    server = socket.create_server(("", port), backlog=1024)
    selector.register(server, selectors.EVENT_READ)
print("ready", flush=True)
while True:
    for key, _ in selector.select():
        kept.append(key.fileobj.accept()[0])
"""
CONNECT = """
import socket, sys, time
source, host, port, count, within_s = sys.argv[1:]
began_s, open_ = time.monotonic(), []
for _ in range(int(count)):
    one = socket.socket()
    one.bind((source, 0))
    one.setblocking(False)
    one.connect_ex((host, int(port)))
    open_.append(one)
time.sleep(float(within_s))
up = 0
for one in open_:
    try:
        one.getpeername()
        up += 1
    except OSError:
        pass
print(up)
"""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("nft") is None,
    reason="needs root and nft; run scripts/setup",
)


@dataclass
class Link:
    """A gateway's and an outside namespace, joined by one cable."""

    gateway: str
    outside: str

    def count_connections(
        self, source: str, port: int, count: int = 1, within_s: float = 1.0
    ) -> int:
        """Open connections from a source together; how many are up in time."""
        arguments = [source, GATEWAY, str(port), str(count), str(within_s)]
        inside = ["ip", "netns", "exec", self.outside]
        done = subprocess.run(
            [*inside, sys.executable, "-c", CONNECT, *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        return int(done.stdout)


def run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)


@pytest.fixture(scope="module")
def link() -> Iterator[Link]:
    """The firewall is loaded; the gateway serves nodes, and metrics by mistake."""
    made = Link(f"ymm-{os.getpid()}-gw", f"ymm-{os.getpid()}-out")
    for name in (made.gateway, made.outside):
        done = subprocess.run(["ip", "netns", "add", name], check=False)
        if done.returncode:
            pytest.skip("no network namespace may be made here")
    try:
        run(
            f"ip -n {made.gateway} link add wan type veth peer name wan "
            f"netns {made.outside}"
        )
        run(f"ip -n {made.gateway} addr add {GATEWAY}/24 dev wan")
        for source in (FLOODER, BYSTANDER):
            run(f"ip -n {made.outside} addr add {source}/24 dev wan")
        for name in (made.gateway, made.outside):
            run(f"ip -n {name} link set lo up")
            run(f"ip -n {name} link set wan up")
        for _ in range(2):  # loading it again replaces it
            run(f"ip netns exec {made.gateway} nft -f {RULES}")
        ports = [str(NODE_PORT), str(METRICS_PORT)]
        server = subprocess.Popen(
            ["ip", "netns", "exec", made.gateway, sys.executable, "-c", SERVE, *ports],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        yield made
        server.kill()
        server.wait()
    finally:
        for name in (made.gateway, made.outside):
            subprocess.run(["ip", "netns", "del", name], check=False)


def test_rules_are_valid() -> None:
    """`nft -c` checks them with the kernel and changes nothing."""
    run(f"nft -c -f {RULES}")


@pytest.mark.attack("a metrics port that is open by mistake", "reached")
def test_only_ports_that_others_need_are_open(link: Link) -> None:
    """A metrics endpoint that listens everywhere by mistake is not reached."""
    assert link.count_connections(BYSTANDER, NODE_PORT) == 1
    assert link.count_connections(BYSTANDER, METRICS_PORT) == 0


@pytest.mark.attack("1,100 silent TCP connections of one source", "1,100 accepted")
def test_flood_of_one_source_leaves_the_others_their_connections(link: Link) -> None:
    """1,100 silent connections of one source; another source connects at once."""
    flood = link.count_connections(FLOODER, NODE_PORT, 1100, within_s=0.5)

    assert flood <= 300
    assert link.count_connections(BYSTANDER, NODE_PORT, 20) == 20
