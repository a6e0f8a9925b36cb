"""A message that ends the gateway again and again is put aside; alarms go on."""

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import dying_program
import pytest
from attack_table import timed
from conftest import Broker, wait_until
from programs import Client, Programs

from spatial_mqtt.batching import BatchItem, encode_batch
from spatial_mqtt.client import fetch_retained
from spatial_mqtt.custody import CustodyReceipt
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import BATCH_CONTENT, offer_topic

pytestmark = pytest.mark.broker


def pack(node: str, seq: int, why: bytes = b"") -> bytes:
    reading = Reading("wire", None, True)
    message_id = MessageId(node, "bb", seq)
    return encode_cbor(Pack(message_id, 5, 1.7e9, (reading,), why=why.decode()))


def receipted(client: Client, node: str) -> set[int]:
    found = set()
    for payload in client.on(f"/custody/{node}"):
        for low, high in CustodyReceipt.decode(payload).ranges.get((node, "bb"), ()):
            found |= set(range(low, high + 1))
    return found


class Restarted:
    """The gateway with a faulty decoder, started again whenever it ends."""

    def __init__(self, folder: Path, config: str) -> None:
        self.ends: list[int] = []
        self._log = (folder / "gateway.log").open("ab")
        path = folder / "gateway.toml"
        path.write_text(config)
        program = str(Path(dying_program.__file__))
        self._command = [
            *(sys.executable, "-P", program, "gateway_daemon", "run"),
            *("--config", str(path)),
        ]
        self._start()

    def keep_up(self) -> None:
        """Start it again if it has ended."""
        if self._process.poll() is not None:
            self.ends.append(self._process.returncode)
            self._start()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=self._log)


@pytest.fixture
def served(
    tmp_path: Path, make_broker: Callable[[], Broker]
) -> Iterator[tuple[Restarted, Client]]:
    """A gateway with a faulty decoder, and a client at its broker."""
    manager, local, distributed = (make_broker() for _ in range(3))
    programs = Programs(tmp_path)
    programs.start(
        "manager",
        "manager",
        f'[manager]\nbroker = "{manager.url}"\ndata = "{tmp_path}/manager"\n'
        f'[[broker]]\ntopic = "/"\nurl = "{distributed.url}"\n',
    )
    gateway = Restarted(
        tmp_path,
        f'[gateway]\nid = "gw-1"\nbroker = "{local.url}"\nareas = ["/3"]\n'
        f'managers = ["{manager.url}"]\ndata = "{tmp_path}/gateway"\n',
    )
    fetch_retained(local.endpoint, offer_topic("gw-1"), "probe", 120)
    client = Client(local.endpoint, "quiet", "/custody/+")
    yield gateway, client
    client.connection.stop()
    gateway.stop()
    programs.kill_all()


@pytest.mark.attack(
    "a message that ends the gateway at each start", "never receipted behind it"
)
def test_message_that_kills_the_gateway_is_put_aside_after_two_deaths(
    served: tuple[Restarted, Client], tmp_path: Path, report: Callable[..., None]
) -> None:
    """The broker redelivers it; the alarms before and behind it are receipted.

    Inside a batch only the message that kills is put aside, and none is lost.
    """
    gateway, client = served
    kills, raises = (
        pack("bad", n, why)
        for n, why in enumerate((dying_program.KILLS, dying_program.RAISES))
    )
    batch = encode_batch([
        BatchItem(pack("good", 1)), BatchItem(kills), BatchItem(pack("good", 2))
    ])  # fmt: skip
    client.publish("/forward/3/1/2/pri5", batch, content=BATCH_CONTENT)
    client.publish("/forward/3/1/3/pri5", raises)
    client.publish("/forward/3/1/2/pri5", pack("good", 3))

    def all_arrived() -> bool:
        gateway.keep_up()
        return receipted(client, "good") == {1, 2, 3}

    # An alarm behind it waits for four restarts.
    waits_s = timed(lambda: wait_until(all_arrived, 120))
    ends = list(gateway.ends)
    client.publish("/forward/3/1/2/pri5", batch, content=BATCH_CONTENT)
    client.publish("/forward/3/1/2/pri5", pack("good", 4))
    waits_s += timed(lambda: wait_until(lambda: 4 in receipted(client, "good"), 60))
    report(bystander_s=waits_s)
    gateway.keep_up()

    assert sorted(ends) == [-signal.SIGKILL] * 2 + [os.EX_SOFTWARE] * 2
    assert gateway.ends == ends, "a dead letter ends it no more"
    assert receipted(client, "bad") == set(), "its sender keeps it"
    letters = [
        json.loads(path.read_text())
        for path in (tmp_path / "gateway" / "dead-letters").iterdir()
    ]
    assert {base64.b64decode(each["payload"]) for each in letters} == {kills, raises}
    log = (tmp_path / "gateway.log").read_text()
    assert log.count("is put aside in") == 2
