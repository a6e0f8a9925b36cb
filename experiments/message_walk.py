"""``python -m experiments.message_walk``: the code that a message meets in a gateway.

A client publishes one message of priority 4 at the gateway's own broker; it goes to a
distributed broker and from there to a subscriber at the own broker. For each thread of
the gateway the files, functions and calls are counted, and the moves: calls in another
file than the call before. Of `lane` and `local`, only the iterations of their loop that
publish, handle an answer or acknowledge are counted. The numbers are for reading the
code (docs/explanation/code.md), not a measure of speed.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from types import FrameType
from typing import Final, NamedTuple

import click

from demo.processes import free_port
from experiments.bench.gateway import SUBSCRIPTION_LOG
from experiments.bench.site import ROOT, Site
from experiments.bench.table import table
from gateway_daemon.app import build_gateway
from gateway_daemon.config import read_gateway_settings
from gateway_daemon.gateway.gateway import Gateway
from service_runtime.tls import Endpoint
from spatial_mqtt.connection import Connection
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.transport import (
    BaseConnectionHandler,
    IncomingMessage,
    Publication,
    Session,
)

PACKAGES: Final = (
    "service_runtime",
    "slope_science",
    "spatial_mqtt",
    "edge_agent",
    "gateway_daemon",
    "backend_spark",
)
FOLDERS: Final = tuple(f"{ROOT}/{package}/" for package in PACKAGES)
THREADS: Final = {
    "paho-mqtt-client-gw": "network, own broker",
    "front": "front",
    "lane": "lane",
    "paho-mqtt-client-gw-ear": "network, distributed broker",
    "deliveries": "deliveries",
    "local": "local",
    "paho-mqtt-client-gw-local": "network, own broker, to subscribers",
}
LOOP: Final = "LoopWatchdog.watch_loop.<locals>.heartbeat"
WORK: Final = {"Uplink._publish", "Uplink._handle_answer", "SqliteQueue.ack"}
SETTLE_S: Final = 2.0


class Call(NamedTuple):
    """A call of a function of the product."""

    file: str
    function: str


class Recorder:
    """Records calls by thread while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.calls: defaultdict[str, list[Call]] = defaultdict(list)

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Record an event of `sys.setprofile`."""
        code = frame.f_code
        if self.is_on and event == "call" and code.co_filename.startswith(FOLDERS):
            name = threading.current_thread().name.split(" ")[0]
            self.calls[name].append(Call(code.co_filename, code.co_qualname))


class Client(BaseConnectionHandler):
    """Subscriber and publisher at the gateway's own broker."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.received = 0
        session = Session("walk", filters=(("/3/#", 1), ("/custody/n1", 1)))
        self.connection = Connection(endpoint, session, self)
        self.connection.start()

    def on_message(self, message: IncomingMessage) -> None:
        self.received += 1

    def send(self, seq: int) -> None:
        """Publish a message, and wait for it and for its receipt."""
        pack = Pack(MessageId("n1", "b", seq), 4, 1.7e9, (Reading("rain", "mm", 0.5),))
        topic = "/forward/3/1/2/3/pri4"
        before = self.received
        self.connection.publish(Publication(topic, encode_cbor(pack)))
        _wait(lambda: self.received >= before + 2)


def _wait(is_done: Callable[[], bool], timeout_s: float = 60.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not is_done():
        if time.monotonic() > end_s:
            raise SystemExit("no answer from the gateway")
        time.sleep(0.01)


def _start(site: Site[None], own: int) -> Gateway:
    """Start brokers and Manager, and build the gateway."""
    distributed, manager = free_port(), free_port()
    site.mosquitto("own", None, own, *SUBSCRIPTION_LOG)
    site.mosquitto("distributed", None, distributed)
    site.mosquitto("manager-broker", None, manager)
    path = site.folder / "manager.toml"
    path.write_text(
        f'[manager]\nbroker = "mqtt://127.0.0.1:{manager}"\ndata = "{site.folder}/m"\n'
        f'[[broker]]\ntopic = "/"\nurl = "mqtt://127.0.0.1:{distributed}"\n'
    )
    site.python("manager", None, "gateway_daemon", "manager", "--config", path)
    config = site.folder / "gateway.toml"
    config.write_text(
        f'[gateway]\nid = "gw"\nbroker = "mqtt://127.0.0.1:{own}"\n'
        f'managers = ["mqtt://127.0.0.1:{manager}"]\nareas = ["/3"]\n'
        f'data = "{site.folder}/g"\n'
    )
    return build_gateway(read_gateway_settings(config))[0]


def _record(site: Site[None]) -> dict[str, list[Call]]:
    recorder = Recorder()
    threading.setprofile(recorder)
    own = free_port()
    gateway = _start(site, own)
    thread = threading.Thread(target=gateway.run)
    thread.start()
    _wait(lambda: gateway.is_up)
    client = Client(Endpoint("127.0.0.1", own, tls=False))
    time.sleep(SETTLE_S)
    for seq in (1, 2):
        client.send(seq)
    time.sleep(SETTLE_S)
    recorder.is_on = True
    client.send(3)
    time.sleep(SETTLE_S / 2)
    recorder.is_on = False
    client.connection.stop()
    gateway.stop()
    thread.join()
    return recorder.calls


def _of_message(calls: list[Call]) -> Iterator[Call]:
    """The calls without the iterations of an uplink's loop that do no work."""
    if not any(call.function == "Uplink._publish" for call in calls):
        yield from calls
        return
    starts = [at for at, call in enumerate(calls) if call.function == LOOP]
    for start, end in pairwise([0, *starts, len(calls)]):
        if any(call.function in WORK for call in calls[start:end]):
            yield from calls[start:end]


def _count(name: str, threads: Sequence[list[Call]]) -> tuple[object, ...]:
    calls = [call for each in threads for call in each]
    moves = sum(a.file != b.file for each in threads for a, b in pairwise(each))
    return name, len({c.file for c in calls}), len(set(calls)), moves, len(calls)


@click.command()
def main() -> None:
    """Record one message and print the counts."""
    with Site(None) as site:
        recorded = _record(site)
    walk = {THREADS[name]: list(_of_message(recorded[name])) for name in THREADS}
    rows = [_count(name, [calls]) for name, calls in walk.items()]
    rows.append(_count("all", list(walk.values())))
    click.echo(table(("thread", "files", "functions", "moves", "calls"), rows))


if __name__ == "__main__":
    main()
