"""Events: one rise of one slope, from its first sign to the verdict of a person.

All are folded from the journal: entries of kind ``alert`` open an event, raise its
peak, add a cause or end it; ``event_state`` entries are what people decided. What
changes with each message, its count and the time of the last one, is in memory only and
is counted again from the tables after a restart. A journal of an earlier release, with
an entry for each message, folds into the same events.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from backend_spark.console.audit_log import Journal, JournalDraft, JournalEntry
from backend_spark.i18n import reasons_of
from slope_science.levels import DANGER, WARNING, Cause, observed_causes
from slope_science.reasons import Reason

CLEAR_S: Final = 3600
"""A slope must be judged below the lowest level for this time before an event ends."""

QUIET_S: Final = 6 * 3600
"""Time without a message that ends an event of a node outside all cells."""

MISSING_S: Final = 1800
"""Time without a level of a cell after which messages of its nodes count alone."""

EARLIER_RELEASE_GAP_S: Final = 86_400
"""Entries of an earlier release, which wrote no ends, further apart are two events."""

KINDS: Final = ("alert", "event_state", "acknowledge")
"""Kinds of journal entries that are folded."""


class EventState(StrEnum):
    """What people have decided about an event."""

    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    CHECKED = "checked"
    FALSE_ALARM = "false_alarm"
    SLOPE_FAILED = "slope_failed"
    CLOSED = "closed"


_JUDGED_FALSE: Final = (EventState.FALSE_ALARM, EventState.CLOSED)
"""States that hold for what was known at the time: a new cause, or the message of
another node, reopens the event."""


@dataclass(frozen=True)
class Sign:
    """A level of a cell, or an urgent message of a node.

    Attributes:
        slope: Token of the cell, or ``node:ID`` outside all cells.
        node: Node that sent the message; None for a level.
        level: 1 to 5; the priority of a message.
        at_s: Unix time of the level, or of the receipt.
        last_s: Unix time until which the level lasted; `at_s` of a message.
        key: Identifies the message.
        measured_s: Unix time of the measurement, of a message that came late; else 0.
        reasons: English sentences.
        reason_codes: The reasons as JSON.
    """

    slope: str
    node: str | None
    level: int
    at_s: int
    last_s: int
    key: str
    reasons: tuple[str, ...] = ()
    reason_codes: tuple[str, ...] = ()
    measured_s: int = 0

    @property
    def causes(self) -> frozenset[Cause]:
        """What was measured."""
        return observed_causes(_parsed(self.reason_codes, self.reasons))


@dataclass(eq=False)
class Event:
    """One rise of one slope.

    Attributes:
        number: Number of the journal entry that opened it.
        slope: See `Sign`.
        first_s: Unix time of the first sign.
        last_s: Unix time of the last one.
        peak: Highest level.
        peak_s: Unix time of the first sign at that level.
        causes: What was measured.
        nodes: Nodes that sent messages.
        messages: Number of messages.
        over_s: Unix time of its end; None while it is in force.
        state: What people decided last.
        state_s: Unix time of that decision.
        who: Who decided; empty for an event that nobody has seen.
        text: Remark of that decision.
        failed_s: Earliest and latest time of the landslide, if the slope failed.
        known: Level that people know, and the Unix time of its step: that of the newest
            entry that called them, or of what they saw when they decided.
        measured_s: Unix time of the measurement, where that entry came late; else 0.
        by_message: Whether that entry was a node's message, and no level of the cell.
        newest: Newest level of the cell with the time of its step; in memory only.
        lowered: Highest of the last hour of judged levels after what people know; None
            before there is an hour of them; in memory only.
        searched: What was searched last for a rise; in memory only, and not kept when
            nothing could be written.
        entries: Numbers of its journal entries.
        asked: Number of the newest entry that whoever decides must know: it opened,
            rose or reopened, or another person decided.
        calls: Numbers of the entries that made it open: it opened, rose or reopened.
        reopened: Number of the newest entry that reopened it after a decision; 0
            without any.
        reasons: Those of the peak: sentences and codes.
        keys: Of the messages that were counted, while it is in force.
    """

    number: int
    slope: str
    first_s: int
    last_s: int
    peak: int
    peak_s: int
    causes: frozenset[Cause] = frozenset()
    nodes: frozenset[str] = frozenset()
    messages: int = 0
    over_s: int | None = None
    state: EventState = EventState.OPEN
    state_s: float = 0.0
    who: str = ""
    text: str = ""
    failed_s: tuple[float, float] | None = None
    known: tuple[int, int] = (0, 0)
    measured_s: int = 0
    by_message: bool = False
    newest: tuple[int, int] | None = None
    lowered: int | None = None
    searched: tuple[object, ...] = ()
    entries: list[int] = field(default_factory=list)
    asked: int = 0
    calls: set[int] = field(default_factory=set)
    reopened: int = 0
    reasons: tuple[Reason, ...] = ()
    keys: set[str] = field(default_factory=set)

    @property
    def cell(self) -> str | None:
        """Token of its cell."""
        return None if self.slope.startswith("node:") else self.slope

    def covers(self, sign: Sign) -> bool:
        """Whether a sign belongs to it, by its time."""
        if sign.last_s < self.first_s - CLEAR_S:
            return False
        return self.over_s is None or sign.at_s <= self.over_s

    def changes_by(self, sign: Sign) -> str:
        """What a sign changes that is written: ``rose``, ``cause`` or nothing."""
        if sign.level > self.peak or self._returns(sign):
            return "rose"
        is_other = sign.node is not None and sign.node not in self.nodes
        is_later = sign.at_s > self.state_s and self.state in _JUDGED_FALSE
        return "cause" if sign.causes - self.causes or (is_other and is_later) else ""

    def _returns(self, sign: Sign) -> bool:
        """Whether a message calls people again without a level of the cell.

        It does so outside all cells after an hour without messages. In a cell the
        levels count, which follow a message; while they are missing, as when the
        scoring job stands still, a message above what people know counts, or above the
        last hour of levels.
        """
        is_decided = self.state is not EventState.OPEN and sign.at_s > self.state_s
        if not is_decided or sign.level < self.call_level():
            return False
        if self.cell is None:
            return sign.at_s > self.last_s + CLEAR_S
        newest_s = 0 if self.newest is None else self.newest[1]
        is_alone = sign.node is not None and sign.at_s > newest_s + MISSING_S
        known = self.known[0]
        return is_alone and sign.level > min(known, self.lowered or known)

    def call_level(self) -> int:
        """Lowest level whose return calls people again."""
        return WARNING if self.state in _JUDGED_FALSE else DANGER

    def count(self, sign: Sign) -> bool:
        """Take the time of a sign, and count its message once; whether it is new."""
        before = (self.first_s, self.last_s, self.messages, len(self.nodes))
        self.first_s = min(self.first_s, sign.at_s)
        self.last_s = max(self.last_s, sign.last_s)
        if sign.node is not None:
            self.keys.add(sign.key)
            self.nodes |= {sign.node}
            self.messages = max(self.messages, len(self.keys))
        return before != (self.first_s, self.last_s, self.messages, len(self.nodes))

    def keep_counts(self, before: "Event") -> None:
        """Take what the same event has counted, which is not in the journal."""
        self.first_s = min(self.first_s, before.first_s)
        self.last_s = max(self.last_s, before.last_s)
        self.messages = max(self.messages, before.messages)
        self.nodes |= before.nodes
        self.keys |= before.keys
        self.newest = before.newest

    def take(self, entry: JournalEntry) -> None:
        """Fold one more entry of kind ``alert``."""
        body = entry.body
        self.entries.append(entry.id)
        if body["what"] == "over":
            self.over_s = body["step_s"]
            self.last_s = max(self.last_s, body["last_s"])
            self.messages = max(self.messages, body["messages"])
            self.keys.clear()
            return
        codes = tuple(body.get("reason_codes") or ())
        reasons = _parsed(codes, tuple(body["reasons"]))
        causes = observed_causes(reasons)
        self._take_level(entry, reasons, causes)
        if body["level"] == self.peak and reasons and not self.reasons:
            self.reasons = reasons
        self.causes |= causes
        self.first_s = min(self.first_s, begin_s(entry))
        self.last_s = max(self.last_s, body.get("last_s", body["step_s"]))
        self.messages = max(self.messages, body.get("messages", 0))
        if body.get("node"):
            self.nodes |= {body["node"]}

    def _take_level(
        self,
        entry: JournalEntry,
        reasons: tuple[Reason, ...],
        causes: frozenset[Cause],
    ) -> None:
        body = entry.body
        is_other = body.get("node") is not None and body["node"] not in self.nodes
        if body["level"] > self.peak:
            self.peak, self.peak_s = body["level"], begin_s(entry)
            self.reasons = reasons
            self._reopen(body)
        elif body["what"] == "rose":  # again, after a lower level
            self._reopen(body)
        elif (causes - self.causes or is_other) and self.state in _JUDGED_FALSE:
            self.state = EventState.OPEN

    def _reopen(self, body: dict[str, Any]) -> None:
        self.state = EventState.OPEN
        self.known = body["level"], body["step_s"]
        self.measured_s = body.get("measured_s", 0)
        self.by_message = bool(body.get("node"))

    def decide(self, entry: JournalEntry) -> None:
        """Fold the decision of a person."""
        body = entry.body
        self.entries.append(entry.id)
        self.asked = entry.id
        before, self.state = self.state, EventState(body.get("state", "acknowledged"))
        self.state_s, self.who, self.text = entry.at_s, entry.who, body["text"]
        level, step_s = body.get("level", self.known[0]), body.get("step_s", entry.at_s)
        self.known = level, round(step_s)
        if self.state is EventState.SLOPE_FAILED:
            # Earlier releases stored the end of a step that was ahead as the begin.
            self.failed_s = (min(body["from_s"], body["to_s"]), body["to_s"])
        elif EventState.SLOPE_FAILED is before or self.state is EventState.FALSE_ALARM:
            self.failed_s = None  # a corrected verdict, not what followed a new rise

    def seen_level(self, now_s: float) -> dict[str, int]:
        """Level that a person sees who decides now, for the body of the decision.

        A level that called people within the last hour counts on: the levels of the
        cell follow a message, and a short dip is none. So does that of a message that
        no level has followed yet.
        """
        if self.newest is None:
            return {}
        level, step_s = self.newest
        known, known_s = self.known
        is_ahead = self.by_message and step_s <= known_s
        if is_ahead or known_s > now_s - CLEAR_S:
            level = max(level, known)
        return {"level": level, "step_s": known_s if is_ahead else step_s}


@dataclass(frozen=True)
class EventFilter:
    """Which events are listed; None selects all.

    Attributes:
        states: Their states.
        min_level: Lowest peak.
        from_s: Begin of a time; an event may have begun before.
        to_s: End of a time.
        text: Part of a cell's token or a node's id.
        named: Tokens of cells whose places have the text in their names.
        cause: Cause that an event has among others; empty for any.
    """

    states: frozenset[EventState] | None = None
    min_level: int = 0
    from_s: float | None = None
    to_s: float | None = None
    text: str = ""
    named: frozenset[str] = frozenset()
    cause: str = ""

    def accepts(self, event: Event) -> bool:
        """Whether an event is listed."""
        return (
            (self.states is None or event.state in self.states)
            and event.peak >= self.min_level
            and (not self.cause or self.cause in event.causes)
            and self._accepts_time(event)
            and self._accepts_place(event)
        )

    def _accepts_time(self, event: Event) -> bool:
        begins = self.to_s is None or event.first_s <= self.to_s
        return begins and (self.from_s is None or event.last_s >= self.from_s)

    def _accepts_place(self, event: Event) -> bool:
        if not self.text or event.cell in self.named:
            return True
        return any(self.text in name for name in (event.slope, *event.nodes))


@dataclass(frozen=True)
class OpenEvents:
    """Summary of the open events for every page.

    Attributes:
        revision: Grows with every change of any event.
        count: Number of open events.
        peak: Highest level among them; 0 without any.
        newest: Number of the newest entry that calls for attention.
    """

    revision: int = 0
    count: int = 0
    peak: int = 0
    newest: int = 0


class EventBook:
    """All events, folded from the journal; several threads may use it.

    Args:
        journal: The journal.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.RLock()
        self._revision = 0
        self._read()

    def _read(self) -> None:
        """Fold the whole journal."""
        self._events: dict[int, Event] = {}
        self._by_slope: dict[str, list[Event]] = {}
        self._event_of: dict[int, Event] = {}
        self._newest = 0
        for entry in self._journal.read_after(0, *KINDS):
            self._fold(entry)

    def _fold(self, entry: JournalEntry) -> None:
        self._revision += 1
        if entry.kind == "alert":
            self._fold_alert(entry)
            return
        number = entry.body.get("event") or entry.body["alert"]  # of earlier releases
        event = self._event_of.get(number)
        if event is not None:
            event.decide(entry)

    def _fold_alert(self, entry: JournalEntry) -> None:
        body = entry.body
        slope = slope_of(body["cell"], body.get("node"))
        event = self._events.get(body.get("event", 0))
        if event is None and body["what"] in {"level", "message"}:
            event = self._of_earlier_release(slope, body["step_s"])
        if event is None:
            event = Event(entry.id, slope, body["step_s"], body["step_s"], 0, 0)
            self._events[entry.id] = event
            self._by_slope.setdefault(slope, []).append(event)
        self._event_of[entry.id] = event
        was = (event.state, event.peak)
        event.take(entry)
        if body["what"] == "message":
            event.count(_message_sign(slope, body))
        is_call = was != (event.state, event.peak) or body["what"] == "rose"
        if event.state is EventState.OPEN and is_call:
            event.calls.add(entry.id)
            if was[0] is not EventState.OPEN:
                event.reopened = entry.id
            event.asked = entry.id
            self._newest = entry.id

    def _of_earlier_release(self, slope: str, at_s: int) -> Event | None:
        known = self._by_slope.get(slope, ())
        event = known[-1] if known else None
        if event is None or event.over_s is not None:
            return None
        return None if at_s - event.last_s > EARLIER_RELEASE_GAP_S else event

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Write the entries of all changes within in one transaction.

        If they cannot be written, none of the changes has happened.
        """
        with self._lock:  # always before that of the journal
            try:
                with self._journal.batch():
                    yield
            except BaseException:
                counted = self._events
                self._read()
                for number in self._events.keys() & counted.keys():
                    self._events[number].keep_counts(counted[number])
                raise

    def add(self, sign: Sign, now_s: float) -> None:
        """Fold a sign, and write what it changes."""
        with self._lock:
            event = self._find(sign)
            change = "opened" if event is None else event.changes_by(sign)
            if change:
                self._write(sign, event, change, now_s)
                event = self._find(sign)
            if event is not None and event.count(sign):
                self._revision += 1

    def _find(self, sign: Sign) -> Event | None:
        for event in reversed(self._by_slope.get(sign.slope, ())):
            if event.covers(sign):
                return event
        return None

    def _write(
        self, sign: Sign, event: Event | None, change: str, now_s: float
    ) -> None:
        is_message = sign.node is not None
        body = {
            "what": change,
            "event": 0 if event is None else event.number,
            "cell": None if sign.slope.startswith("node:") else sign.slope,
            "node": sign.node,
            "level": sign.level,
            "step_s": sign.at_s,
            "last_s": sign.last_s,
            "messages": (event.messages if event else 0) + is_message,
            "reasons": list(sign.reasons),
            "reason_codes": list(sign.reason_codes),
            "measured_s": sign.measured_s,
        }
        key = f"{sign.slope} {change} {sign.level} {sign.at_s} {sign.key}".strip()
        self._append(now_s, [JournalDraft("alert", key, "", body)])

    def rise_again(self, event: Event, sign: Sign, now_s: float) -> None:
        """Write that the level of an event rose above what people know of it."""
        with self._lock:
            self._write(sign, event, "rose", now_s)
            event.count(sign)

    def end(self, event: Event, at_s: int, now_s: float) -> None:
        """Write the end of an event at a Unix time."""
        with self._lock:
            body = _end_body(event, at_s)
            self._append(
                now_s, [JournalDraft("alert", f"{event.number} over", "", body)]
            )

    def decide(self, number: int, who: str, now_s: float, body: dict[str, Any]) -> None:
        """Write the decision of a person about an event.

        Args:
            number: Of the event.
            who: Name of the account.
            now_s: Unix time.
            body: ``state`` and ``text``; the times of a landslide.
        """
        with self._lock:
            event = self._events[number]
            body = {"event": number, **body, **event.seen_level(now_s)}
            draft = JournalDraft("event_state", event.slope, who, body)
            self._append(now_s, [draft])

    def _append(self, now_s: float, drafts: list[JournalDraft]) -> None:
        for entry in self._journal.write_all(now_s, drafts):
            if entry is not None:
                self._fold(entry)

    def in_force(self, slope: str | None = None) -> list[Event]:
        """Events that have not ended, of one slope or of all."""
        with self._lock:
            known = (
                self._events.values()
                if slope is None
                else self._by_slope.get(slope, ())
            )
            return [e for e in known if e.over_s is None]

    def get(self, number: int) -> Event | None:
        """Event with a number."""
        with self._lock:
            return self._events.get(number)

    def event_of_entry(self, number: int) -> Event | None:
        """Event to which a journal entry belongs."""
        with self._lock:
            return self._event_of.get(number)

    def select(self, wanted: EventFilter) -> list[Event]:
        """Events: open ones first, the highest level first; then the newest first."""
        with self._lock:
            found = [e for e in self._events.values() if wanted.accepts(e)]
        return sorted(found, key=_order)

    def count_states(self) -> dict[str, int]:
        """Number of events in each state."""
        with self._lock:
            counts = Counter(event.state for event in self._events.values())
        return {state.value: counts[state] for state in EventState}

    def landslides(self) -> list[tuple[Event, tuple[float, float]]]:
        """Events with the verdict that the slope failed, and when."""
        with self._lock:
            return [(e, e.failed_s) for e in self._events.values() if e.failed_s]

    def summary(self) -> OpenEvents:
        """Summary for every page."""
        with self._lock:
            peaks = [e.peak for e in self._events.values() if e.state == "open"]
            peak = max(peaks, default=0)
            return OpenEvents(self._revision, len(peaks), peak, self._newest)


def slope_of(cell: str | None, node: str | None) -> str:
    """Key of a slope: its cell, or its node outside all cells."""
    return cell or f"node:{node}"


def begin_s(entry: JournalEntry) -> int:
    """Unix time of the sign in an entry of kind ``alert``, as people are shown it.

    A level has the time of the end of its step, which may be after the entry.
    """
    step_s = int(entry.body["step_s"])
    return step_s if entry.body.get("node") else min(step_s, int(entry.at_s))


@lru_cache(4096)
def _parsed(codes: tuple[str, ...], texts: tuple[str, ...]) -> tuple[Reason, ...]:
    """Reasons, which are asked for several times in a row."""
    return reasons_of(codes, texts)


def _message_sign(slope: str, body: dict[str, Any]) -> Sign:
    at_s = body["step_s"]
    return Sign(slope, body["node"], body["level"], at_s, at_s, body["key"])


def _end_body(event: Event, at_s: int) -> dict[str, Any]:
    return {
        "what": "over",
        "event": event.number,
        "cell": event.cell,
        "node": next(iter(event.nodes), None),
        "level": event.peak,
        "step_s": at_s,
        "last_s": event.last_s,
        "messages": event.messages,
    }


def _order(event: Event) -> tuple[bool, int, int, int]:
    is_open = event.state is EventState.OPEN
    return not is_open, -event.peak if is_open else 0, -event.first_s, -event.number
