"""``python -m experiments.bench.sender``: a backlog, then urgent messages behind it.

``--by paho`` publishes with a plain paho client; ``--by uplink`` puts the messages into
a `SqliteQueue` that our `Uplink` drains.
"""

import json
import logging
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from edge_agent.queue.base import MessageDraft
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.uplink.gateway_selection import GatewaySelector
from edge_agent.uplink.in_flight import CustodyMode, FlightLimits
from edge_agent.uplink.link_rate import RateLimiter
from edge_agent.uplink.scheduler import SenderProfile
from edge_agent.uplink.uplink import Connect, Uplink
from experiments.bench.wire import CELL, name, payload
from service_runtime.tls import Endpoint, TlsFiles
from spatial_mqtt.connection import Connection
from spatial_mqtt.topics import ForwardTopic

FIRST_URGENT_S = 1.5
BACKLOG_PRIORITY = 1
URGENT_PRIORITY = 5

Hand = Callable[[bool, list[int]], None]
"""Sends messages: (whether they are urgent, their numbers)."""


@click.command()
@click.option("--by", type=click.Choice(["paho", "uplink"]), required=True)
@click.option("--host", required=True)
@click.option("--port", type=int, required=True)
@click.option("--backlog", type=int, required=True)
@click.option("--backlog-bytes", type=int, default=1000)
@click.option("--urgent", type=int, default=1)
@click.option("--urgent-bytes", type=int, default=200)
@click.option("--idle", "idle_s", type=float, default=1.5, help="Before the backlog.")
@click.option("--every", "every_s", type=float, default=2.1, help="Urgent messages.")
@click.option("--window-bytes", type=int, default=FlightLimits().window_bytes)
@click.option(
    "--custody", type=click.Choice([c.value for c in CustodyMode]), default="auto"
)
@click.option("--number", type=int, default=0, help="Of this sender among several.")
@click.option("--second-port", type=int, help="Of a second gateway on the host.")
@click.option(
    "--reconnect", "waits_s", nargs=2, type=int, help="paho: shortest, longest wait."
)
@click.option("--ca", help="File of the authority, for TLS.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(  # noqa: PLR0913, PLR0917 - one for each option
    by: str,
    host: str,
    port: int,
    backlog: int,
    backlog_bytes: int,
    urgent: int,
    urgent_bytes: int,
    idle_s: float,
    every_s: float,
    window_bytes: int,
    custody: str,
    number: int,
    second_port: int | None,
    waits_s: tuple[int, int] | None,
    ca: str | None,
    out: Path,
) -> None:
    """Send the messages and record the times."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    sizes = {False: backlog_bytes, True: urgent_bytes}
    if by == "paho":
        hand = _by_paho(host, port, sizes, waits_s)
    else:
        limits = FlightLimits(window_bytes=window_bytes)
        endpoint = Endpoint(host, port, tls=ca is not None)
        files = TlsFiles(ca=ca) if ca else TlsFiles(allow_plain_mqtt=True)
        connect = partial(Connection, tls=files)
        profile = SenderProfile(
            f"bench-node-{number}", limits=limits, custody=CustodyMode(custody)
        )
        second = [replace(endpoint, port=second_port)] if second_port else []
        hand = _by_uplink([endpoint, *second], connect, profile, out, sizes)
    print("ready", flush=True)
    time.sleep(idle_s)
    handed: dict[str, float] = {}
    began_s = time.monotonic()
    _hand(hand, False, range(number * backlog, (number + 1) * backlog), handed)
    # Not in step with anything periodic.
    jitter = random.Random(backlog + number)  # noqa: S311
    for nth in range(urgent):
        at_s = began_s + FIRST_URGENT_S + nth * every_s
        at_s += jitter.random() * 0.2 * every_s if nth else 0.0
        time.sleep(max(0.0, at_s - time.monotonic()))
        _hand(
            hand, True, range(number * urgent + nth, number * urgent + nth + 1), handed
        )
        out.write_text(json.dumps(handed))
    threading.Event().wait()


def _hand(
    hand: Hand, is_urgent: bool, numbers: range, handed: dict[str, float]
) -> None:
    now_s = time.monotonic()
    handed.update({name(is_urgent, number): now_s for number in numbers})
    hand(is_urgent, list(numbers))


def topic(is_urgent: bool) -> str:
    """Return the topic of a message: its cell, with its priority."""
    priority = URGENT_PRIORITY if is_urgent else BACKLOG_PRIORITY
    return str(ForwardTopic(CELL, priority))


def _by_paho(
    host: str, port: int, sizes: dict[bool, int], waits_s: tuple[int, int] | None
) -> Hand:
    up = threading.Event()
    client = paho.Client(CallbackAPIVersion.VERSION2, "bench-node")
    client.on_connect = lambda *_: up.set()
    if waits_s:
        client.reconnect_delay_set(*waits_s)
    client.connect(host, port)
    client.loop_start()
    if not up.wait(20):
        raise TimeoutError("no CONNACK")

    def hand(is_urgent: bool, numbers: list[int]) -> None:
        for number in numbers:
            data = payload(name(is_urgent, number), sizes[is_urgent])
            client.publish(topic(is_urgent), data, qos=1)

    return hand


@dataclass(frozen=True)
class _Gateways:
    """A fixed list of gateways that are always healthy."""

    endpoints: list[Endpoint]

    def cached_gateways(self) -> list[Endpoint]:
        return self.ranked_gateways()

    def ranked_gateways(self) -> list[Endpoint]:
        return self.endpoints

    def is_healthy(self, gateway: Endpoint) -> bool:
        return True


def _by_uplink(
    endpoints: list[Endpoint],
    connect: Connect,
    sender: SenderProfile,
    out: Path,
    sizes: dict[bool, int],
) -> Hand:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    store = SqliteQueue(out.with_suffix(".db"), sender.id, boot, 500_000_000)
    uplink = Uplink(store, sender, connect, RateLimiter(), time.monotonic)
    threading.Thread(target=uplink.run, daemon=True).start()
    selector = GatewaySelector(
        uplink, _Gateways(endpoints), threading.Event(), time.monotonic
    )
    for loop in (selector.run_checks, selector.run):
        threading.Thread(target=loop, daemon=True).start()
    while uplink.down_since_s is not None:
        time.sleep(0.01)

    def hand(is_urgent: bool, numbers: list[int]) -> None:
        size_bytes = sizes[is_urgent]
        store.put([_draft(is_urgent, number, size_bytes) for number in numbers])
        uplink.wake()

    return hand


def _draft(is_urgent: bool, number: int, size_bytes: int) -> MessageDraft:
    name_ = name(is_urgent, number)
    return MessageDraft(
        URGENT_PRIORITY if is_urgent else BACKLOG_PRIORITY,
        topic(is_urgent),
        lambda id_: payload(name_, size_bytes, id_),
    )


if __name__ == "__main__":
    main()
