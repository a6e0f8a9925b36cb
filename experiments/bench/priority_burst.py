"""Messages of several priorities at the same moment, and the times of their arrival.

``send`` publishes bursts from plain connections (MQTT 3.1.1), or puts them into a
`SqliteQueue` that our `Uplink` drains, as a node does. ``receive`` records when each
message arrives, until it is ended.
"""

import json
import logging
import random
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import click
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from edge_agent.queue.base import MessageDraft
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.uplink.link_rate import RateLimiter
from edge_agent.uplink.scheduler import SenderProfile
from edge_agent.uplink.uplink import Uplink
from experiments.bench import packets
from experiments.bench.numbered_messages import decode_number, encode_numbered
from service_runtime.tls import Endpoint, TlsFiles
from spatial_mqtt.connection import Connection
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId
from spatial_mqtt.topics import ForwardTopic

POLL_S = 0.05
NAME_CHARS = 6


def message_name(burst: int, priority: int, number: int) -> str:
    """Return the name of a message: six characters, the first is its priority."""
    return f"{priority}{burst:02d}{number:03d}"


def payload(name: str, size_bytes: int) -> bytes:
    """Return a message of a plain client; its bytes do not compress."""
    head = f"{name} ".encode()
    return head + random.Random(name).randbytes(size_bytes - len(head))  # noqa: S311


def pack(name: str, size_bytes: int, message_id: MessageId) -> bytes:
    """Return a message of a node, which is a pack: receipts need its id."""
    return encode_numbered(int(name), int(name[0]), size_bytes, message_id)


def name_in(data: bytes) -> str:
    """Return the name in a message."""
    if data[:1].isdigit():
        return data[:NAME_CHARS].decode()
    return str(decode_number(data))


def shuffled(burst: int, levels: Sequence[int], each: int) -> list[tuple[str, int]]:
    """Return names and priorities of a burst, in the order of publication."""
    found = [(message_name(burst, p, n), p) for p in levels for n in range(each)]
    random.Random(burst).shuffle(found)  # noqa: S311 - chance, no secrets
    return found


@click.group()
def main() -> None:
    """Send or receive."""


@main.command()
@click.option("--host", required=True)
@click.option("--port", type=int, required=True)
@click.option("--by", type=click.Choice(["plain", "uplink"]), required=True)
@click.option("--connections", type=int, default=1, help="Of plain clients.")
@click.option("--topic", required=True, help="{pri} becomes the priority.")
@click.option("--bytes", "size_bytes", type=int, default=120)
@click.option("--orders", type=click.Path(path_type=Path), required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True)
def send(  # noqa: PLR0913, PLR0917 - one for each option
    host: str,
    port: int,
    by: str,
    connections: int,
    topic: str,
    size_bytes: int,
    orders: Path,
    out: Path,
) -> None:
    """Publish the bursts that a file orders; record when each message was sent.

    The file has one line for each: its number, the messages of each priority, and the
    priorities.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    if by == "plain":
        numbers = range(connections)
        sockets = [packets.connected(host, port, f"plain-{n}") for n in numbers]
        for sock in sockets:
            threading.Thread(target=_read, args=(sock,), daemon=True).start()
        publish = partial(_send_plain, sockets, topic, size_bytes)
    else:
        publish = partial(_send_by_uplink, *_uplink(host, port, out), topic, size_bytes)
    print("ready", flush=True)
    sent: dict[str, float] = {}
    for burst, each, *levels in _orders(orders):
        sent |= publish(shuffled(burst, levels, each))
        _write(out, sent)


def _orders(path: Path) -> Iterator[list[int]]:
    done = 0
    while True:
        lines = path.read_text().splitlines() if path.exists() else []
        for line in lines[done:]:
            yield list(map(int, line.split()))
        done = len(lines)
        time.sleep(POLL_S)


def _write(path: Path, times: dict[str, float]) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(times))
    fresh.replace(path)


def _send_plain(
    sockets: list[socket.socket],
    topic: str,
    size_bytes: int,
    messages: list[tuple[str, int]],
) -> dict[str, float]:
    sent: dict[str, float] = {}
    for number, (name, priority) in enumerate(messages):
        data = payload(name, size_bytes)
        to = topic.replace("{pri}", str(priority))
        packet = packets.publish(to, number // len(sockets) + 1, data)
        sent[name] = time.monotonic()
        sockets[number % len(sockets)].sendall(packet)
    return sent


def _read(sock: socket.socket) -> None:
    """Read the acknowledgements."""
    while sock.recv(4096):
        pass


def _uplink(host: str, port: int, out: Path) -> tuple[SqliteQueue, Uplink]:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    queue = SqliteQueue(out.with_suffix(".db"), out.stem, boot, 500_000_000)
    connect = partial(Connection, tls=TlsFiles(allow_plain_mqtt=True))
    uplink = Uplink(
        queue, SenderProfile(out.stem), connect, RateLimiter(), time.monotonic
    )
    threading.Thread(target=uplink.run, daemon=True).start()
    uplink.switch_to(Endpoint(host, port))
    while uplink.down_since_s is not None:
        time.sleep(0.01)
    return queue, uplink


def _send_by_uplink(
    queue: SqliteQueue,
    uplink: Uplink,
    topic: str,
    size_bytes: int,
    messages: list[tuple[str, int]],
) -> dict[str, float]:
    drafts = []
    for name, priority in messages:
        parsed = ForwardTopic.parse(topic.replace("{pri}", str(priority)))
        make = partial(pack, name, size_bytes)
        drafts.append(
            MessageDraft(parsed.priority or LADDER.default, str(parsed), make)
        )
    now_s = time.monotonic()
    queue.put(drafts)
    uplink.wake()
    return dict.fromkeys((name for name, _ in messages), now_s)


@main.command()
@click.option("--host", required=True)
@click.option("--port", type=int, required=True)
@click.option("--filter", "filter_", required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True)
def receive(host: str, port: int, filter_: str, out: Path) -> None:
    """Record arrivals in a file that is replaced as they come."""
    arrivals: dict[str, float] = {}
    client = paho.Client(CallbackAPIVersion.VERSION2, "burst-receiver")

    def on_message(_client: paho.Client, _: object, message: paho.MQTTMessage) -> None:
        arrivals.setdefault(name_in(bytes(message.payload)), time.monotonic())

    client.on_message = on_message
    client.on_subscribe = lambda *_: print("ready", flush=True)
    client.connect(host, port)
    client.loop_start()
    client.subscribe(filter_, 1)
    written = -1
    while True:
        time.sleep(POLL_S)
        if len(arrivals) != written:
            written = len(arrivals)
            _write(out, dict(arrivals))


if __name__ == "__main__":
    main()
