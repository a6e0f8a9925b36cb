"""An area goes to a broker without an ingester, while another broker has one."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Broker, wait_until
from ingesting import TOPIC, IngestBench
from programs import Client, Programs

from spatial_mqtt.client import fetch_retained
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import offer_topic

pytestmark = pytest.mark.broker


def pack(seq: int, priority: int) -> bytes:
    reading = Reading("rain", "mm", 0.5, 0.5 * seq)
    return encode_cbor(Pack(MessageId("node-1", "b", seq), priority, 1.8e9, (reading,)))


class Storm:
    """A gateway with two distributed brokers, and an ingester at the first one."""

    def __init__(
        self, folder: Path, programs: Programs, make_broker: Callable[[], Broker]
    ) -> None:
        self.manager, self.local, self.first, self.second = (
            make_broker() for _ in range(4)
        )
        self.log = folder / "gateway.log"
        self._folder = folder
        self._programs = programs
        self._benches: list[IngestBench] = []
        programs.start(
            "manager",
            "manager",
            f'[manager]\nbroker = "{self.manager.url}"\ndata = "{folder}/manager"\n'
            f'[[broker]]\ntopic = "/"\nurl = "{self.first.url}"\n',
        )
        self.start_ingester("ingest-0", self.first)
        self.start_gateway()

    def start_gateway(self) -> None:
        self._programs.start(
            "gateway",
            "run",
            f'[gateway]\nid = "gw-1"\nbroker = "{self.local.url}"\n'
            f'managers = ["{self.manager.url}"]\ndata = "{self._folder}/gateway"\n',
        )
        fetch_retained(self.local.endpoint, offer_topic("gw-1"), "probe", 60)

    def restart_gateway(self) -> None:
        self._programs.kill("gateway")
        self.start_gateway()

    def start_ingester(self, name: str, broker: Broker) -> None:
        config = self._folder / f"{name}.toml"
        config.write_text(
            f'[backend]\ndata = "{self._folder}/backend"\n'
            f'[ingest]\nid = "{name}"\nbroker = "{broker.url}"\n'
        )
        self._benches.append(IngestBench(config, self._folder / "backend"))
        self._benches[-1].start()
        fetch_retained(broker.endpoint, offer_topic(name), "probe", 60)

    def give_area_to_second(self) -> None:
        admin = Client(self.manager.endpoint, "admin", "/api/#")
        info = {"host": "127.0.0.1", "port": self.second.port}
        entry = json.dumps({"topic": TOPIC[:4], "broker_info": info}).encode()
        admin.publish("/api/tool/distributedbroker/add", entry)
        wait_until(lambda: b"complete" in admin.on("/api/brokertable/update/status"))
        admin.connection.stop()

    def logged(self) -> set[int]:
        return set(self._benches[0].logged())

    def count_in_log(self, words: str) -> int:
        return self.log.read_text().count(words)

    def send(self, seq: int, priority: int) -> None:
        client = Client(self.local.endpoint, "writer")
        client.publish(f"/forward{TOPIC}/pri{priority}", pack(seq, priority))
        client.connection.stop()

    def end(self) -> None:
        for bench in self._benches:
            bench.end_all()


@pytest.fixture
def storm(tmp_path: Path, make_broker: Callable[[], Broker]) -> Iterator[Storm]:
    programs = Programs(tmp_path)
    made = Storm(tmp_path, programs, make_broker)
    yield made
    made.end()
    programs.kill_all()


def test_backend_gets_what_was_sent_before_the_new_broker_had_an_ingester(
    storm: Storm, request: pytest.FixtureRequest
) -> None:
    """Also after a restart of the gateway, while the first broker is away.

    A subscriber at the new broker receives each message once until then.
    """
    storm.send(1, 5)
    wait_until(lambda: storm.logged() == {1})
    analyst = Client(storm.second.endpoint, "analyst", "/#")
    request.addfinalizer(analyst.connection.stop)
    storm.give_area_to_second()
    plain = f":{storm.second.port} gives no receipts"
    wait_until(lambda: storm.count_in_log(plain) == 1)
    storm.send(2, 5)
    storm.send(3, 2)
    wait_until(lambda: len(analyst.on(TOPIC)) == 2)

    storm.first.kill()
    storm.restart_gateway()
    wait_until(lambda: storm.count_in_log(plain) == 2)
    storm.send(4, 5)
    wait_until(lambda: pack(4, 5) in analyst.on(TOPIC))
    sent = analyst.on(TOPIC)
    storm.start_ingester("ingest-1", storm.second)

    wait_until(lambda: storm.logged() == {1, 2, 3, 4})
    assert [sent.count(pack(*each)) for each in ((2, 5), (3, 2), (4, 5))] == [2, 2, 1]
