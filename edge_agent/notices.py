"""Notices and drills: levels and criteria that analysts published for the node's area.

Notices come from the link, are stored for the next start and expire by themselves. A
notice of level 3 or more is renewed or withdrawn as long as its publisher works. If one
expires instead, the publisher or the way from it is gone, and the level of the area is
unknown, not low. So is it if a stored notice may have expired by a clock that is not
set: an RTC may be ahead by hours or years.

A drill exercises the alarm outputs, apart from the notices: it switches an output only
while nothing real does, with a rhythm of its own. It changes neither level nor
sampling, and is not stored: after a restart it goes on when the broker sends its
retained message again.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite

from msgspec import structs

from edge_agent.clock import Clock
from edge_agent.queue.base import Queue, QueueFileError
from service_runtime.errors import FieldError
from slope_science.levels import ADVISORY, LOWEST, WARNING
from spatial_mqtt.announcements import (
    CriteriaNotice,
    Drill,
    Notice,
    NoticeVerifier,
    OpenNotice,
)
from spatial_mqtt.errors import NoticeError
from spatial_mqtt.transport import IncomingMessage

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReceivedOrder:
    """A notice or drill as a node reports it.

    Attributes:
        level: Its level.
        at_s: Unix time of its creation.
        received_s: Unix time of its receipt, by the node's clock.
    """

    level: int
    at_s: float
    received_s: float

    def __str__(self) -> str:
        """As `senml.STATUS_NOTICE` has it."""
        return f"{self.level} {self.at_s:.3f} {self.received_s:.3f}"


@dataclass(frozen=True)
class _Receipt:
    """When a notice was received in this run.

    Attributes:
        wall_s: Unix time, by the node's clock.
        mono_s: Monotonic time.
    """

    wall_s: float
    mono_s: float


NOTICES_STATE = "notices"
UNKNOWN_S = 7 * 86_400.0
"""How long a level is unknown after its notice expired; the default."""

JUDGED_S = 6 * 3600.0
"""How long a withdrawn notice shows that the backend judges the area."""

StoreState = Callable[[Mapping[str, str]], object]


def make_state_writer(queue: Queue) -> StoreState:
    """A function that stores values in a queue's file for the next start."""

    def remember(values: Mapping[str, str]) -> None:
        try:
            queue.put([], values)
        except QueueFileError as error:
            log.warning("state is not stored: %s", error)

    return remember


def make_verifier(keys: Sequence[str]) -> OpenNotice:
    """The signature check of messages that one of these keys has signed.

    Raises:
        FieldError: A key file cannot be used.
    """
    return NoticeVerifier(keys).verify


def make_notice_verifier(keys: Sequence[str]) -> OpenNotice | None:
    """The signature check; refuses every notice where the keys cannot be read."""
    if not keys:
        return None
    try:
        return make_verifier(keys)
    except FieldError as error:
        reason = NoticeError("notice", "checked with a key", "none", str(error))
        log.error("no notice counts: %s", error)  # noqa: TRY400

    def refuse(_topic: str, _payload: bytes) -> bytes:
        raise reason

    return refuse


def check_notice_keys(keys: Sequence[str]) -> list[str]:
    """Notes on the keys for the installer of a node."""
    if not keys:
        return []
    try:
        make_verifier(keys)
    except FieldError as error:
        return [f"no notice will count: notices.{error}"]
    return []


class Notices:
    """The notices for a node, by the topic of their area.

    Args:
        state: State `NOTICES_STATE` of the last run.
        store_state: Stores values for the next start.
        verify: Checks the signature of a topic and payload and returns the notice's
            JSON, or raises `NoticeError`; None where notices need no signature.
        unknown_s: How long a level is unknown after its notice expired.
        clock: For the times of receipt, and while it is not set; None counts as set.

    Attributes:
        on_change: Called after each change, without a lock held; its argument is
            whether criteria were withdrawn. Nothing by default.
        refused: Reason of the last refusal; None when none was refused.
        passed_s: Unix time before the start, by a clock that was set; 0 if unknown.
    """

    on_change: Callable[[bool], object] = staticmethod(lambda _: None)

    def __init__(
        self,
        state: str | None,
        store_state: StoreState,
        *,
        verify: OpenNotice | None = None,
        unknown_s: float = UNKNOWN_S,
        clock: Clock | None = None,
    ) -> None:
        self._by_topic = _restored(state, is_signed=verify is not None)
        self._remember = store_state
        self._opened = verify
        self._unknown_s = unknown_s
        self._clock = clock
        self.passed_s = 0.0
        self._start_s = self._mono_s()
        self._received: dict[str, _Receipt] = {}
        self.refused: str | None = None

    def on_message(self, incoming: IncomingMessage) -> None:
        """Apply a notice; an empty payload withdraws the notice of its topic.

        A notice without criteria keeps those of the earlier one: to raise the level
        of an area does not withdraw its criteria.
        """
        topic = incoming.topic
        earlier = self._by_topic.get(topic)
        try:
            notice = self._read(earlier, topic, incoming.payload)
        except NoticeError as error:
            self.refused = f"on {topic}: {error}"
            log.warning("notice refused %s", self.refused)
            return
        if notice == earlier:
            return
        if notice is None:
            del self._by_topic[topic]
        else:
            self._by_topic[topic] = notice
            wall_s = 0.0 if self._clock is None else self._clock.wall_s()
            self._received[topic] = _Receipt(wall_s, self._mono_s())
        log.info("notice on %s: %s", topic, notice or "withdrawn")
        state = {name: each.encode().decode() for name, each in self._by_topic.items()}
        self._remember({NOTICES_STATE: json.dumps(state)})
        had_criteria = earlier is not None and earlier.criteria is not None
        is_withdrawn = notice is None or notice.withdrawn
        self.on_change(is_withdrawn and had_criteria)

    def level(self, now_s: float) -> int:
        """The highest level in force; 1 without notices."""
        return max((n.level for _, n in self._in_force(now_s)), default=1)

    def current(self, now_s: float) -> ReceivedOrder | None:
        """The notice of the highest level in force; None without one.

        Its time of receipt is 0 after a restart, which keeps the notice only.
        """
        unknown = _Receipt(0.0, 0.0)
        found = [
            ReceivedOrder(n.level, n.at_s, self._received.get(topic, unknown).wall_s)
            for topic, n in self._in_force(now_s)
            if not n.withdrawn
        ]
        return max(found, key=lambda each: (each.level, each.at_s), default=None)

    def is_unknown(self, now_s: float) -> bool:
        """Whether a notice of level 3 or more expired without withdrawal or renewal.

        A new notice for its area, a withdrawal by hand, or `unknown_s` ends this; while
        the clock is not set, `unknown_s` after it has expired for certain. A notice
        without a time of creation was written by hand and ends as written.
        """
        return any(self._expired(now_s))

    def is_judged(self, now_s: float) -> bool:
        """Whether a backend judges the area.

        A notice of level 2 or more is in force, or was withdrawn in the last hours.
        """
        return any(n.level >= ADVISORY for _, n in self._in_force(now_s)) or any(
            n.withdrawn and self._time_for(topic, n, now_s) - n.at_s < JUDGED_S
            for topic, n in list(self._by_topic.items())
        )

    def summary(self, now_s: float) -> str | None:
        """Format the highest level with its area and expiry, and what is unknown.

        None at level 1 with nothing unknown.
        """
        found = [(n.level, n.until_s, topic, n) for topic, n in self._in_force(now_s)]
        parts = []
        level, until_s, topic, notice = max(
            found, key=lambda each: each[:3], default=(1, 0.0, "", None)
        )
        if notice is not None and level > 1:
            parts.append(
                f"level {level} by notice for {topic.removeprefix('/notice')} until "
                f"{format_local_time(until_s)}{_format_doubts(notice)}"
            )
        parts += [
            f"LEVEL UNKNOWN: the notice of level {n.level} for "
            f"{topic.removeprefix('/notice')} {may}expired "
            f"{format_local_time(n.until_s)} without withdrawal"
            for topic, n, may in self._expired(now_s)
        ]
        return "; ".join(parts) or None

    def criteria(self) -> CriteriaNotice | None:
        """The newest criteria; of equal versions, those of the smallest area."""
        found = [
            (notice.criteria.version, len(topic), notice.criteria)
            for topic, notice in list(self._by_topic.items())
            if notice.criteria is not None
        ]
        return max(found, key=lambda each: each[:2])[2] if found else None

    def _in_force(self, now_s: float) -> list[tuple[str, Notice]]:
        notices = list(self._by_topic.items())
        return [
            (topic, n)
            for topic, n in notices
            if self._time_for(topic, n, now_s) < n.until_s
        ]

    def _expired(self, now_s: float) -> Iterator[tuple[str, Notice, str]]:
        """Topic, notice, and "may have " if the clock is not set."""
        for topic, n in list(self._by_topic.items()):
            if n.level < WARNING or n.at_s <= 0:
                continue
            is_in_force = self._time_for(topic, n, now_s) < n.until_s
            least_s = self._least_s(topic, n, now_s)
            if not is_in_force and least_s < n.until_s + self._unknown_s:
                yield topic, n, "may have " if least_s < n.until_s else ""

    def _time_for(self, topic: str, notice: Notice, now_s: float) -> float:
        """The time by which a notice is in force; `now_s` if the clock is set.

        One that was received in this run counts from its creation on the monotonic
        clock. For a stored one there is only a clock that may be ahead.
        """
        least_s = self._least_s(topic, notice, now_s)
        is_timed = notice.at_s > 0 and topic in self._received
        return least_s if is_timed else max(now_s, least_s)

    def _least_s(self, topic: str, notice: Notice, now_s: float) -> float:
        """The least time that it can be; `now_s` if the clock is set."""
        if self._clock is None or self._clock.is_synchronised():
            return now_s
        mono_s, received = self._mono_s(), self._received.get(topic)
        since_s = received.mono_s if received else self._start_s
        return max(
            notice.at_s + mono_s - since_s, self.passed_s + mono_s - self._start_s
        )

    def _mono_s(self) -> float:
        return 0.0 if self._clock is None else self._clock.mono_s()

    def _read(
        self, earlier: Notice | None, topic: str, payload: bytes
    ) -> Notice | None:
        if self._opened is None:
            return _newer(earlier, Notice.decode(payload) if payload else None)
        notice = Notice.decode(self._opened(topic, payload))
        if notice.at_s == 0:
            raise NoticeError("at_s", "given where notices are signed", 0)
        return _newer(earlier, notice)


def format_local_time(at_s: float) -> str:
    """Format a Unix time as the machine's local time, or as a number."""
    try:
        return f"{datetime.fromtimestamp(at_s, UTC).astimezone():%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):  # also from 2038 on 32-bit systems
        return f"{at_s:g}"


def _format_doubts(notice: Notice) -> str:
    """What restricts the level, in parentheses."""
    words = []
    if notice.state == "held":
        words.append(f"held, no data since {format_local_time(notice.known_until_s)}")
    words += [code.replace("_", " ") for code in notice.doubts if code != "level_held"]
    return f" ({', '.join(words)})" if words else ""


def _newer(earlier: Notice | None, notice: Notice | None) -> Notice | None:
    """Merge a notice with the earlier one of its area.

    Raises:
        NoticeError: It is older than the earlier one, or its criteria are.
    """
    if notice is None or earlier is None:
        return notice
    if 0 < notice.at_s <= earlier.at_s:
        return _repeated(earlier, notice)
    if earlier.criteria is None or notice.withdrawn:
        return notice
    if notice.criteria is None:
        return structs.replace(notice, criteria=earlier.criteria)
    if notice.criteria.version < earlier.criteria.version:
        rule = f"no older than the one before ({earlier.criteria.version:.0f})"
        remedy = "give it a newer version, or withdraw the other"
        raise NoticeError("criteria.version", rule, notice.criteria.version, remedy)
    return notice


def _repeated(earlier: Notice, notice: Notice) -> Notice:
    """The earlier notice, when it was only received again, as retained ones are.

    Raises:
        NoticeError: It differs from the earlier one.
    """
    criteria = notice.criteria or earlier.criteria
    if structs.replace(notice, criteria=criteria) == earlier:
        return earlier
    rule = f"newer than the one before ({earlier.at_s:.3f})"
    remedy = "an old one was sent again, or a clock was set back; publish it anew"
    raise NoticeError("at_s", rule, notice.at_s, remedy)


def restored_time(state: str | None) -> float:
    """The Unix time of a stored state; 0 without a usable one."""
    try:
        at_s = float(state or 0.0)
    except ValueError:
        return 0.0
    return at_s if isfinite(at_s) else 0.0


def _restored(remembered: str | None, *, is_signed: bool) -> dict[str, Notice]:
    """Notices of the stored state; with signatures, only those that have a time."""
    notices: dict[str, Notice] = {}
    try:
        state = json.loads(remembered or "{}").items()
    except (ValueError, AttributeError) as error:
        log.warning("stored notices are not used: %s", error)
        return notices
    for topic, text in state:
        try:
            notice = Notice.decode(text.encode())
        except (NoticeError, AttributeError) as error:
            log.warning("the stored notice on %s is not used: %s", topic, error)
            continue
        if notice.at_s > 0 or not is_signed:
            notices[topic] = notice
    return notices


MAX_AHEAD_S = 900.0
"""A drill dated further ahead, by the node's clock, waits."""


class Drills:
    """The drills for a node, by the topic of their area.

    Args:
        wall_s: Unix time.
        verify: Checks the signature of a topic and payload and returns the JSON, or
            raises `NoticeError`; None where drills need no signature.

    Attributes:
        refused: Reason of the last refusal; None when none was refused.
    """

    def __init__(
        self, wall_s: Callable[[], float], verify: OpenNotice | None = None
    ) -> None:
        self._wall_s = wall_s
        self._verify = verify
        self._by_topic: dict[str, tuple[Drill, float]] = {}
        self.refused: str | None = None

    def on_message(self, incoming: IncomingMessage) -> None:
        """Apply a drill; an empty payload ends that of its topic."""
        topic = incoming.topic
        if not incoming.payload:
            if self._verify is None:
                self._by_topic.pop(topic, None)
            return
        try:
            verify = self._verify
            body = verify(topic, incoming.payload) if verify else incoming.payload
            drill = Drill.decode(body)
        except NoticeError as error:
            self.refused = f"on {topic}: {error}"
            log.warning("drill refused %s", self.refused)
            return
        known = self._by_topic.get(topic)
        if known is None or drill.at_s > known[0].at_s:
            self._by_topic[topic] = drill, self._wall_s()
            log.warning("DRILL on %s: %s", topic, drill)

    def current(self) -> ReceivedOrder | None:
        """The drill of the highest level in force; None without one."""
        now_s = self._wall_s()
        found = [
            ReceivedOrder(drill.level, drill.at_s, received_s)
            for drill, received_s in list(self._by_topic.values())
            if not drill.withdrawn and drill.at_s - MAX_AHEAD_S <= now_s < drill.until_s
        ]
        return max(found, key=lambda each: (each.level, each.at_s), default=None)

    def level(self) -> int:
        """Level of the drill in force; 1 without one."""
        drill = self.current()
        return LOWEST if drill is None else drill.level

    def summary(self) -> str | None:
        """The drill in force for a person; None without one."""
        drill = self.current()
        return None if drill is None else f"DRILL of level {drill.level}, not an alarm"
