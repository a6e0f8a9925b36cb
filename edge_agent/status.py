"""What a node does: one line for ``systemctl status``, all of it for programs.

The node's word on itself, now and then, in a pack that goes out anyway.

A pack of its own would cost a commit, and a commit costs a card 74 KiB; so much
more text in a routine pack costs none.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from edge_agent.queue.base import Stats
from edge_agent.queue.inspection import depth_words, waiting_words
from edge_agent.safe_mode import safe_words
from edge_agent.uplink.settings import Served, link_words
from service_runtime.tls import Endpoint
from slope_science.findings import DANGER
from spatial_mqtt import node_status
from spatial_mqtt.senml import Reading

FILE: Final = "status.json"
"""In the folder that systemd makes for the agent under /run."""


@dataclass(frozen=True)
class Status:
    """A node at one moment.

    Attributes:
        line: All that matters, for a person.
        at_s: Unix time by the machine's clock, which may be wrong.
        mono_s: Seconds since the machine started.
        level: Highest that the node sees itself.
        gateway: The one in use.
        is_up: Whether it is reached.
        is_served: Whether it takes our messages.
        queued: Messages by priority.
        oldest_s: Age of the oldest one; None when there is none.
        dropped: Messages ever given up, by priority.
        sensors: How many there are.
        problems: What is wrong, by the names of sensors.
        silent: Loops that are silent for too long.
        mistakes: What is wrong in its settings, in safe mode.
        alarms: Its lamps and sounders: on, off, or why they cannot be switched.
        notice: What an analyst says of the place; None for level 1.
        refused: Why the last notice was refused that was; None when none was.
        update: How an update stands; None when there is none.
    """

    line: str
    at_s: float
    mono_s: float
    level: int
    gateway: str | None
    is_up: bool
    is_served: bool
    queued: Mapping[int, int]
    oldest_s: float | None
    dropped: Mapping[int, int]
    sensors: int
    problems: Mapping[str, str]
    silent: Sequence[str]
    mistakes: Sequence[str]
    alarms: Mapping[str, str]
    notice: str | None
    refused: str | None
    update: str | None = None


@dataclass(frozen=True)
class Parts:
    """What a status is made of.

    Attributes:
        uplink: The node's uplink.
        now_s: Monotonic time, on the uplink's clock.
        stats: What the queue holds.
        oldest_s: Age of its oldest message.
        problems: What is wrong, by the names of the sensors.
        sensors: How many the node has.
        mistakes: What is wrong in its settings, in safe mode.
        alarms: Its lamps and sounders, in words.
        notice: What an analyst says of the place, in words.
        refused: Why the last notice was refused that was.
        update: How an update stands.
    """

    uplink: Served
    now_s: float
    stats: Stats
    oldest_s: float | None
    problems: Mapping[str, str]
    sensors: int
    mistakes: Sequence[str] = ()
    alarms: Mapping[str, str] = field(default_factory=dict)
    notice: str | None = None
    refused: str | None = None
    update: str | None = None


def status_of(
    parts: Parts, level: int, silent: Sequence[str], at_s: float, mono_s: float
) -> Status:
    """Put a status together; see `Status` for the words."""
    uplink, stats = parts.uplink, parts.stats
    return Status(
        line=_line(parts),
        at_s=at_s,
        mono_s=mono_s,
        level=level,
        gateway=None if uplink.endpoint is None else str(uplink.endpoint),
        is_up=uplink.down_since_s is None,
        is_served=uplink.unserved_since_s is None,
        queued={p: depth.rows for p, depth in stats.depth.items()},
        oldest_s=parts.oldest_s,
        dropped=dict(stats.dropped),
        sensors=parts.sensors,
        problems=dict(parts.problems),
        silent=tuple(silent),
        mistakes=tuple(parts.mistakes),
        alarms=dict(parts.alarms),
        notice=parts.notice,
        refused=parts.refused,
        update=parts.update,
    )


def save(status: Status, folder: Path) -> None:
    """Let others read it; half a file is never seen.

    Raises:
        OSError: The folder cannot be written.
    """
    fresh = folder / f"{FILE}.new"
    fresh.write_text(json.dumps(asdict(status), ensure_ascii=False))
    fresh.chmod(0o644)  # nothing in it is secret
    os.replace(fresh, folder / FILE)  # noqa: PTH105 - atomic, and it says so


def load(folder: Path) -> dict[str, Any]:
    """The last status that was saved.

    Raises:
        FileNotFoundError: There is none: the agent does not run.
        PermissionError: The folder is not for everybody.
    """
    told: dict[str, Any] = json.loads((folder / FILE).read_text())
    return told


def _line(parts: Parts) -> str:
    words = [safe_words(parts.mistakes)] if parts.mistakes else []
    if parts.notice is not None:
        words.append(parts.notice)
    words.append(link_words(parts.uplink, parts.now_s))
    words.append(depth_words(parts.stats, parts.oldest_s))
    if parts.problems:
        fail = f"{len(parts.problems)} of {parts.sensors} sensors fail"
        words.append(f"{fail}: {', '.join(parts.problems)}")
    else:
        words.append(f"{parts.sensors} sensors, none is known to fail")
    return "; ".join(words)


URGENT: Final = DANGER

MOST_OF_WORDS: Final = 120
"""A pack has a price by the byte."""


@dataclass(frozen=True)
class Facts:
    """What is told.

    Attributes:
        stats: What the queue holds.
        oldest_s: Age of its oldest message; None when there is none.
        gateway: The gateway in use.
        battery_v: Voltage of the battery; None where there is none.
        update: How an update stands; None where there is none.
    """

    stats: Stats
    oldest_s: float | None
    gateway: Endpoint | None
    battery_v: float | None
    update: str | None = None

    def readings(self) -> list[Reading]:
        """The words of `spatial_mqtt.node_status`."""
        gateway = self.gateway
        where = node_status.NOTHING if gateway is None else str(gateway)
        dropped = sum(self.stats.dropped.values())
        told = [
            Reading(
                node_status.QUEUED,
                None,
                waiting_words(self.stats) or node_status.NOTHING,
            ),
            Reading(node_status.OLDEST, "s", float(round(self.oldest_s or 0.0))),
            Reading(node_status.GATEWAY, None, where),
            Reading(node_status.DROPPED, "count", float(dropped)),
        ]
        if self.battery_v is not None:
            told.append(Reading(node_status.BATTERY, "V", round(self.battery_v, 2)))
        if self.update is not None:
            told.append(Reading(node_status.UPDATE, None, self.update[:MOST_OF_WORDS]))
        return told


class SelfReport:
    """Says when it is time.

    Args:
        facts: What to tell.
        every_s: Time between two reports.
        mono_s: Monotonic time.
    """

    def __init__(
        self, facts: Callable[[], Facts], every_s: float, mono_s: Callable[[], float]
    ) -> None:
        self._facts = facts
        self._every_s = every_s
        self._mono_s = mono_s
        self._due_s = mono_s()

    def due(self, priority: int) -> list[Reading]:
        """What a pack of a priority should carry: mostly nothing.

        An urgent pack is kept short, unless there was none but urgent ones for so
        long that nobody would hear of the battery.
        """
        now_s = self._mono_s()
        patience_s = self._every_s if priority >= URGENT else 0.0
        if now_s < self._due_s + patience_s:
            return []
        self._due_s = now_s + self._every_s
        return self._facts().readings()
