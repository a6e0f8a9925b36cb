"""Puts the updates of a node's image together."""

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from edge_agent.config import NodeSettings
from edge_agent.notices import Remember, opener
from edge_agent.queue.base import Queue
from edge_agent.update.fetch import Fetch
from edge_agent.update.machine import Machine
from edge_agent.update.rollouts import ROLLOUTS_STATE, Rollouts
from edge_agent.update.updater import Updater, Way
from edge_agent.uplink.throttle import Throttle
from edge_agent.uplink.uplink import Uplink
from slope_science.levels import DANGER, LOWEST
from spatial_mqtt.connection import Connection
from spatial_mqtt.errors import FieldError
from spatial_mqtt.priority import LADDER
from spatial_mqtt.pulse import Pulse

log = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""What waits longer than this and its gathering is a backlog, and goes first."""

BUSY_S = 5.0


def rollouts(node: NodeSettings, queue: Queue, remember: Remember) -> Rollouts | None:
    """What is rolled out; None where the node takes updates from its card alone."""
    keys = node.settings.update.keys
    if not keys:
        return None
    try:
        opened = opener(keys)
    except FieldError as error:
        log.error("no rollout counts: update.%s", error)  # noqa: TRY400
        return None
    said = queue.recall(ROLLOUTS_STATE)
    return Rollouts(node.settings.node.id, opened, said, remember)


@dataclass(frozen=True)
class Beside:
    """What else the node has.

    Attributes:
        queue: Its queue.
        uplink: Its uplink.
        pulse: Listens to its loops.
        minute: Local minute of the day; None while the clock is not set.
        stop: Ends its loops.
    """

    queue: Queue
    uplink: Uplink
    pulse: Pulse
    minute: Callable[[], int | None]
    stop: threading.Event


def updater(
    node: NodeSettings, known: Rollouts | None, beside: Beside
) -> Updater | None:
    """The loop that fetches what is rolled out; None where nothing ever is."""
    if known is None:
        return None
    settings, uplink = node.settings, beside.uplink
    throttle = _throttle(node, beside.minute)

    def fetch(sha256: str) -> Fetch | None:
        endpoint = uplink.endpoint
        if endpoint is None or uplink.unserved_since_s is not None:
            return None
        return Fetch(
            settings.node.id,
            sha256,
            lambda session, ear: Connection(
                endpoint, session, ear, settings.tls, pulse=beside.pulse
            ),
            time.monotonic,
        )

    def wait_s() -> float:
        if uplink.unserved_since_s is not None:
            return math.inf
        if _has_backlog(node, beside.queue):
            return BUSY_S
        return throttle.wait_s(LOWEST, time.monotonic())

    way = Way(fetch, wait_s, lambda size: throttle.spend(size, time.monotonic()))
    folder = Path(settings.queue.path).with_name("update")
    machine = Machine(Path(os.environ.get("YAMAMORI_ROOT", "/")))
    return Updater(known, machine, folder, way, stop=beside.stop, clock=time.monotonic)


def _throttle(node: NodeSettings, minute: Callable[[], int | None]) -> Throttle:
    """The rate and timetable of updates: the link's, unless there are own."""
    own, link = node.settings.update, node.settings.uplink
    made = replace(
        link,
        rate_bytes_per_s=own.rate_bytes_per_s or link.rate_bytes_per_s,
        period=own.period or link.period,
        override_from=LADDER.top + 1,
    )
    return made.throttle(minute)


def _has_backlog(node: NodeSettings, queue: Queue) -> bool:
    """Whether messages wait that an update would delay."""
    waiting = queue.stats().depth
    if any(depth.rows for p, depth in waiting.items() if p >= DANGER):
        return True
    oldest_s = queue.oldest_s()
    patience_s = PATIENCE_S + node.settings.uplink.gather_s
    return oldest_s is not None and oldest_s > patience_s
