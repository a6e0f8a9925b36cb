"""Sender: plans notifications from the journal, and delivers what is due.

Each target has one delivery at a time, in a thread of its own, so that a receiver that
does not answer delays no other, nor the heartbeat. What is due for a target meanwhile
is one message.

A delivery that never ends, to a server that goes on sending parts of an answer, keeps
its own target waiting until the console is restarted. Its notifications are late after
`LATE_S`, which ends the heartbeat. SIGTERM ends the program without waiting for it, and
its notifications are sent again after the start.
"""

import hashlib
import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from backend_spark.console.audit_log import Journal
from backend_spark.console.databases import is_damage
from backend_spark.console.events import EventBook, EventState
from backend_spark.console.notifications import channels
from backend_spark.console.notifications.channels import DeliveryError, Message
from backend_spark.console.notifications.outbox import (
    NotificationOutbox,
    NotificationState,
    StoredNotification,
    row_of,
)
from backend_spark.console.notifications.rules import (
    NotificationRules,
    NotificationSection,
    Plan,
    Target,
    describe_unknown,
)
from backend_spark.console.notifications.texts import MessageTexts, NameOf, Rise
from backend_spark.console.settings import ConsoleSection
from service_runtime.errors import FieldError

log = logging.getLogger(__name__)

MAX_AGE_S: Final = 24 * 3600.0
"""Rises of events whose last sign is older are not notified: after a long pause, or
when the console first reads old tables."""

MERGE_S: Final = 20.0
"""Least time between two messages to one target; more rises meanwhile are merged."""

MAX_EVENTS: Final = 200
"""Most events in a message that has all their data, about 1 kB each."""

MAX_WORKERS: Final = 64
"""Deliveries at a time: more than a console has addresses, and fewer than the threads
that its unit allows. A thread is started when all others are busy."""

HEARTBEAT_S: Final = 60.0
"""Time between two requests of the dead man's switch."""

LATE_S: Final = 600.0
"""Delay of a notification, or time since the tables were read, that ends the
heartbeat."""

Clock = Callable[[], float]


@dataclass
class NotificationSender:
    """Sends notifications.

    Attributes:
        console: Settings of the console.
        rules: The rules.
        journal: The journal.
        events: The events.
        outbox: The notifications.
        clock: Unix time.
        present: Unix time of the present: of the newest data in an exercise.
        is_judged: Whether any cell has a level of the present.
        name_of: Names of cells.
        read_s: Unix time at which the tables were read last.
        heartbeat_at_s: Unix time of the last heartbeat that was accepted.
    """

    console: ConsoleSection
    rules: NotificationRules
    journal: Journal
    events: EventBook
    outbox: NotificationOutbox
    clock: Clock
    present: Clock
    read_s: Clock
    is_judged: Callable[[], bool]
    name_of: NameOf
    heartbeat_at_s: float = 0.0
    _busy: set[Target] = field(default_factory=set)
    _sent_s: dict[Target, float] = field(default_factory=dict)
    _unrecorded: dict[int, tuple[StoredNotification, float | None, float]] = field(
        default_factory=dict
    )
    _reached: dict[int, frozenset[str]] = field(default_factory=dict)
    _pinged_s: float = 0.0
    _pinging: bool = False
    _obstacle: str = ""
    _unknown: str = ""
    _is_closed: bool = False

    def __post_init__(self) -> None:
        """Start no thread before the first delivery."""
        # A later entry may have the number of one that the journal has lost.
        ended = self.journal.opened_at
        self._lost_after = ended if ended < self.outbox.planned() else None
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(MAX_WORKERS, "notify")
        self._heartbeats = ThreadPoolExecutor(1, "heartbeat")

    def step(self) -> None:
        """Plan, and begin the deliveries that are due; nothing after `close`.

        Raises:
            sqlite3.Error: The outbox cannot be written. Deliveries begin nevertheless.
        """
        if self._is_closed:
            return
        now_s = self.clock()
        self._report_unknown()
        try:
            self._forget_lost()
            self._record_deliveries()
            self._plan(now_s)
        finally:
            self._begin_deliveries(now_s)
            self._ping(now_s)

    def _report_unknown(self) -> None:
        """Log the unknown districts of rules at the start and when they change."""
        unknown = "; ".join(describe_unknown(self.rules.unknown()))
        if unknown and unknown != self._unknown:
            log.error("%s", unknown)
        elif self._unknown and not unknown:
            log.warning("the districts of all rules are known again")
        self._unknown = unknown

    def _forget_lost(self) -> None:
        """Plan again from where the journal ended at the start, if it was replaced."""
        if self._lost_after is None:
            return
        self.outbox.forget_after(self._lost_after)
        log.warning(
            "the journal ended at entry %d: notifications of later ones are given up",
            self._lost_after,
        )
        self._lost_after = None

    def _record_deliveries(self) -> None:
        """Record what was delivered while the outbox could not be written."""
        while self._unrecorded:
            number, (each, began_s, ended_s) = next(iter(self._unrecorded.items()))
            self.outbox.end([each], "", ended_s, began_s)
            self._unrecorded.pop(number)

    def _begin_deliveries(self, now_s: float) -> None:
        with self._lock:  # before the reading: a delivery may end after it
            busy = self._busy.copy()
        delivered = self._unrecorded.copy()
        due = {each.id: each for each in self.outbox.due(now_s)}
        wanted: list[StoredNotification] = []
        over: dict[int, NotificationState] = {}
        for each in self._with_waiting(due, now_s):
            target = self.rules.place(each.target, each.address, self.outbox.addresses)
            if each.id in delivered or target in busy or self._is_of_duty(each):
                continue
            state = self._end_of(each, target)
            if state is None and target is not None:
                reached = self._reached.get(each.id, each.reached)
                wanted.append(replace(each, target=target, reached=reached))
            else:
                over[each.id] = state or NotificationState.GIVEN_UP
        groups: dict[tuple[Target, frozenset[str]], list[StoredNotification]] = {}
        for each in wanted:
            groups.setdefault((each.target, each.reached), []).append(each)
        for (target, _), group in groups.items():
            # A group that only waits would take the turn of one that is due.
            if any(each.id in due for each in group):
                self._begin_delivery(target, group, now_s)
        for number, state in over.items():
            self.outbox.drop(number, state)
            self._reached.pop(number, None)

    def _with_waiting(
        self, due: dict[int, StoredNotification], now_s: float
    ) -> list[StoredNotification]:
        """What is due with all that waits for a repetition, the highest level first.

        The same recipients get both in one message: a lower level that came after a
        higher one of the same event would read as a fall.
        """
        if not due:
            return []
        waiting = {each.id: each for each in self.outbox.overdue(now_s)} | due
        return sorted(waiting.values(), key=lambda each: (-each.level, each.id))

    def _plan(self, now_s: float) -> None:
        after = self.outbox.planned()
        entries = self.journal.read_after(after, "alert")
        if not entries:
            return
        rows: list[tuple[Any, ...]] = []
        for entry in entries:
            event = self.events.event_of_entry(entry.id)
            if event is None:
                return  # it is being folded
            if entry.id not in event.calls:
                continue
            if self.present() - event.last_s > MAX_AGE_S:
                continue
            level = int(entry.body["level"])
            for plan in self.rules.plan(event.cell, level, now_s):
                about = (entry.id, event.number, level)
                rows.append(row_of(about, plan, self._shown(plan.target), now_s))
        self.outbox.plan(rows, entries[-1].id)
        if rows:
            log.info("%d notifications for %d entries", len(rows), len(entries))

    def _shown(self, target: Target) -> str:
        try:
            return channels.masked(self._address(target))
        except (DeliveryError, FieldError):
            return ""

    def _is_of_duty(self, each: StoredNotification) -> bool:
        """Whether a notification must wait for the end of this exercise.

        It would be sent with the mark of an exercise, but is none.
        """
        return self.console.exercise and not each.exercise

    def _end_of(
        self, each: StoredNotification, target: Target | None
    ) -> NotificationState | None:
        """State of a notification that is not wanted any more; None if it is."""
        if target is None:
            name, at = each.target.rule, each.target.position + 1
            log.error("rule %s, address %d: removed, notification given up", name, at)
            return NotificationState.GIVEN_UP
        if each.exercise and not self.console.exercise:
            log.warning("%s: notification of an exercise given up", target.rule)
            return NotificationState.GIVEN_UP
        event = self.events.get(each.event)
        if not each.only_open or event is None:
            return None
        # The rules apply separately to what reopened the event after a decision.
        is_decided = event.state != EventState.OPEN or event.reopened > each.entry
        is_needed = not is_decided and not self._has_sent_higher(each)
        return None if is_needed else NotificationState.NOT_NEEDED

    def _has_sent_higher(self, each: StoredNotification) -> bool:
        """Whether the same address has received a later, higher level of the event.

        The lower level after it would read as a fall.
        """
        return any(
            other.state is NotificationState.DELIVERED
            and other.level > each.level
            and other.entry > each.entry
            and (other.target, other.address) == (each.target, each.address)
            and other.exercise == each.exercise
            for other in self.outbox.of_event(each.event)
        )

    def _begin_delivery(
        self, target: Target, batch: Sequence[StoredNotification], now_s: float
    ) -> None:
        """Begin a delivery to a target, if it may."""
        with self._lock:
            last_s = self._sent_s.get(target, 0.0)
            is_early = target in self._busy or 0 <= now_s - last_s < MERGE_S
            if not is_early and not self._is_closed:
                self._busy.add(target)
                self._pool.submit(self._deliver, target, batch)

    def _deliver(self, target: Target, batch: Sequence[StoredNotification]) -> None:
        """Deliver a batch, or its most urgent part, in a thread of the pool."""
        began_s = self.clock()
        try:
            part, rest = self._divide(target, batch, began_s)
            is_begun = self._begin(part, began_s)
            reached = set(part[0].reached)  # as of all of them
            problem = self._send(target, part, reached)
            ended_s = self.clock()
            # The rest of a batch follows at once.
            if not is_begun or (not problem and not rest):
                self._sent_s[target] = ended_s
            times = (None if is_begun else began_s, ended_s)
            self._end(part, problem, times, reached)
            if rest and not problem:
                self._hasten(rest, ended_s)
        except Exception as error:
            # A loop of the console reports a damaged database, and ends it.
            failed = "delivery to %s failed; it is repeated: %r"
            log.warning(failed, target.rule, error, exc_info=not is_damage(error))
        finally:
            with self._lock:
                self._busy.discard(target)

    def _divide(
        self, target: Target, batch: Sequence[StoredNotification], now_s: float
    ) -> tuple[Sequence[StoredNotification], Sequence[StoredNotification]]:
        """Divide a batch into what one message may have, and the rest.

        If it is too large, what is due goes alone: what waits for a repetition would
        take its place each time.
        """
        most = self._most_events(target)
        if most is None or len(batch) <= most:
            return batch, ()
        part = ([each for each in batch if each.due_s <= now_s] or batch)[:most]
        sent = {each.id for each in part}
        return part, [each for each in batch if each.id not in sent]

    def _hasten(self, rest: Sequence[StoredNotification], now_s: float) -> None:
        """Let what waits for a repetition follow a message that was accepted."""
        try:
            self.outbox.hasten([each.id for each in rest], now_s)
        except sqlite3.Error as error:
            log.warning("%d notifications wait longer: %s", len(rest), error)

    def _most_events(self, target: Target) -> int | None:
        """Most events in a message to a target; None where its size is limited."""
        section = self.rules.section(target.rule)
        has_data = section is not None and section.format == "json"
        try:
            is_bounded = not has_data or not channels.is_webhook(self._address(target))
        except (DeliveryError, FieldError):  # reported when it is used
            is_bounded = True
        return None if is_bounded else MAX_EVENTS

    def _begin(self, batch: Sequence[StoredNotification], now_s: float) -> bool:
        """Record the begin of an attempt; False if the outbox cannot be written."""
        try:
            self.outbox.begin([each.id for each in batch], now_s)
        except sqlite3.Error as error:
            log.warning("an attempt is not recorded: %s", error)
            return False
        return True

    def _end(
        self,
        batch: Sequence[StoredNotification],
        problem: str,
        times: tuple[float | None, float],
        reached: set[str],
    ) -> None:
        """Record the end of an attempt, a delivery later if that fails.

        Args:
            batch: What was sent.
            problem: Why it failed; empty if it did not.
            times: Unix times: its begin, if that is not recorded, and its end.
            reached: Recipients of a mail that have accepted it until now.
        """
        began_s, ended_s = times
        try:
            self.outbox.end(batch, problem, ended_s, began_s, reached=reached)
        except sqlite3.Error as error:
            log.warning("an attempt is not recorded: %s", error)
            if problem:
                self._reached |= {each.id: frozenset(reached) for each in batch}
            else:
                ends = {each.id: (each, began_s, ended_s) for each in batch}
                self._unrecorded.update(ends)
        else:
            for each in batch:
                self._reached.pop(each.id, None)

    def _send(
        self, target: Target, batch: Sequence[StoredNotification], reached: set[str]
    ) -> str:
        """Send one message, and return why it failed; empty if it did not.

        Recipients in `reached` do not get it again; those that accept it are added.
        """
        try:
            section = self._section(target)
            message = self._message(section, batch)
            key = key_of(section)
            address = self._address(target)
            now_s = self.clock()
            channels.deliver(
                address, section.format, key, message, now_s, reached=reached
            )
        except (DeliveryError, FieldError) as error:
            log.warning("%s: %s was not delivered: %s", target.rule, batch[0].id, error)
            return str(error)
        log.info("%s: %d notifications delivered", target.rule, len(batch))
        return ""

    def _message(
        self, section: NotificationSection, batch: Sequence[StoredNotification]
    ) -> Message:
        ids = ",".join(str(each.id) for each in batch)
        made = f"{batch[0].created_s} {section.name} {ids}"
        name = "msg_" + hashlib.sha256(made.encode()).hexdigest()[:24]
        texts = texts_of(section, self.console, self.name_of)
        # A test beside rises needs no words: "no danger" would read as the all-clear.
        real = [each for each in batch if each.entry != 0]
        if not real:
            return texts.test(name)
        rises = {each.id: self._rise(each) for each in real}
        found = [rise for rise in rises.values() if rise is not None]
        lost: dict[int, int] = {}  # level by event
        for each in real:
            if rises[each.id] is None:
                lost[each.event] = max(each.level, lost.get(each.event, 0))
        return texts.message(name, found, list(lost.values()))

    def _rise(self, each: StoredNotification) -> Rise | None:
        if self._lost_after is not None and each.entry > self._lost_after:
            return None  # its number may be that of another entry by now
        entry, event = self.journal.find(each.entry), self.events.get(each.event)
        if entry is None or event is None:
            return None
        # A copy: another thread may add one.
        later = [call for call in sorted(event.calls) if call > entry.id]
        found = [entry, *filter(None, map(self.journal.find, later))]
        return Rise(event, entry, max(found, key=lambda rise: int(rise.body["level"])))

    def _section(self, target: Target) -> NotificationSection:
        section = self.rules.section(target.rule)
        if section is None:
            raise DeliveryError(f"there is no rule {target.rule}")
        return section

    def _address(self, target: Target) -> str:
        address = self.rules.address(target)
        if address is None:
            raise DeliveryError(f"rule {target.rule} has no such address")
        return read_address(address)

    def test(self, rule: str, now_s: float) -> int:
        """Store a test message for each address of a rule, and return their number.

        Raises:
            FieldError: There is no such rule.
        """
        section = self.rules.section(rule)
        if section is None:
            names = ", ".join(each.name for each in self.rules.sections) or "none"
            raise FieldError("rule", f"the name of one ({names})", rule)
        plans = [
            Plan(target, now_s, False, address, self.console.exercise)
            for target, address in self.rules.targets(section)
        ]
        self.outbox.add_tests(
            row_of((0, 0, 0), plan, self._shown(plan.target), now_s) for plan in plans
        )
        return len(section.to)

    def _ping(self, now_s: float) -> None:
        """Request the dead man's switch; not while it is being requested."""
        is_due = not 0 <= now_s - self._pinged_s < HEARTBEAT_S  # also after a step back
        if self.console.heartbeat is None or self._pinging or not is_due:
            return
        obstacle, before = self._find_obstacle(now_s), self._obstacle
        self._obstacle = obstacle
        if obstacle:
            if obstacle != before:
                log.error("no heartbeat: %s", obstacle)
            return
        with self._lock:
            if not self._is_closed:
                self._pinged_s, self._pinging = now_s, True
                self._heartbeats.submit(self._heartbeat, self.console.heartbeat)

    def _find_obstacle(self, now_s: float) -> str:
        """What keeps warnings from their receivers; empty if nothing does."""
        if now_s - self.read_s() >= LATE_S:
            return "the tables are not read, or nothing can be saved"
        if self.outbox.overdue(now_s - LATE_S):
            return "notifications are late; console-notifications log lists them"
        if not self.is_judged():
            return "no cell has a level of the last 30 minutes; see backend-score"
        return self._unknown

    def _heartbeat(self, url: str) -> None:
        try:
            channels.post_heartbeat(read_address(url))
            self.heartbeat_at_s = self.clock()
        except (DeliveryError, FieldError) as error:
            log.warning("heartbeat was not accepted: %s", error)
        finally:
            self._pinging = False

    def is_busy(self) -> bool:
        """Whether a delivery or a heartbeat is being sent."""
        with self._lock:
            return bool(self._busy) or self._pinging

    def close(self) -> None:
        """Begin no more deliveries; does not wait for those that have begun."""
        with self._lock:
            self._is_closed = True
        for pool in (self._pool, self._heartbeats):
            pool.shutdown(wait=False, cancel_futures=True)


def check_addresses(console: ConsoleSection) -> None:
    """Refuse addresses, keys and files of the settings that cannot be used.

    Raises:
        FieldError: One cannot.
    """
    for number, section in enumerate(console.notifications, start=1):
        for address in section.to:
            channels.check_address(read_address(address))
        if section.key_file is not None:
            _check_key(section.key_file, f"console.notifications[{number}].key_file")
    if console.heartbeat is not None and not channels.is_webhook(
        read_address(console.heartbeat)
    ):
        raise FieldError("console.heartbeat", "https://…", console.heartbeat)


def _check_key(path: str, name: str) -> None:
    if len(channels.read_secret(Path(path))) < 24:  # noqa: PLR2004 - as its doc says
        rule = "a file whose first line has at least 24 characters"
        raise FieldError(name, rule, path, "openssl rand -base64 32")


def texts_of(
    section: NotificationSection,
    console: ConsoleSection,
    name_of: NameOf = lambda _: "",
) -> MessageTexts:
    """Texts of a rule's messages."""
    link = f"{console.address.rstrip('/')}/" if console.address else ""
    is_escalation = section.unacknowledged_min > 0
    return MessageTexts(
        section.language, console.place, link, console.exercise, is_escalation, name_of
    )


def key_of(section: NotificationSection) -> bytes | None:
    """Key of the signatures of a rule's webhooks; None without one.

    Raises:
        FieldError: Its file cannot be read.
    """
    if section.key_file is None:
        return None
    return channels.read_secret(Path(section.key_file)).encode()


def read_address(address: str) -> str:
    """An address, or that in the file of which it is the path.

    Raises:
        FieldError: The file cannot be read.
    """
    if address.startswith("/"):
        return channels.read_secret(Path(address))
    return address
