"""Outbox: notifications that wait for delivery, and every attempt, in an SQLite file.

A notification is stored with the journal entry up to which notifications are planned,
in one transaction, so that none is lost or planned twice by a kill. It stays until it
was delivered: at least once, twice if the program ends between delivery and commit.
"""

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from backend_spark.console.databases import open_database
from backend_spark.console.notifications.rules import Plan, Target
from slope_science.levels import DANGER

RETRY_S: Final = (5.0, 300.0)
"""First and longest time between attempts; each is twice the one before."""

GIVE_UP_S: Final = 24 * 3600.0
"""Delay at which a notification below level 4 is given up; others never are."""

DELIVERED: Final = "delivered"

MAX_ATTEMPTS: Final = 10
"""Attempts of a notification that are kept: one of level 4 or 5 has no last one."""

_TABLES: Final = """
create table if not exists planned (entry integer not null);
create table if not exists notification (
  id integer primary key, entry integer not null, event integer not null,
  rule text not null, position integer not null, shown text not null,
  level integer not null, created_s real not null, wanted_s real not null,
  due_s real not null,
  only_open integer not null, state text not null,
  address text not null default '', exercise integer not null default 0,
  attempts integer not null default 0, reached text not null default '[]'
);
create unique index if not exists once
  on notification (entry, rule, position) where entry > 0;
create index if not exists waiting on notification (due_s) where state = 'waiting';
create index if not exists of_event on notification (event);
create table if not exists attempt (
  id integer primary key, notification integer not null, at_s real not null,
  outcome text
);
create index if not exists of_notification on attempt (notification);
"""
_COLUMNS: Final = (
    "id, entry, event, rule, position, shown, level, created_s, wanted_s, due_s,"
    " only_open, state, address, exercise, reached"
)
_NEW_COLUMNS: Final = {
    "address": "text not null default ''",
    "exercise": "integer not null default 0",
    "attempts": "integer not null default 0",
    "reached": "text not null default '[]'",
}
"""Columns that files of earlier releases lack."""

_COUNT_ATTEMPTS: Final = (
    "update notification set attempts ="
    " (select count(*) from attempt where attempt.notification = notification.id)"
)

_INSERT: Final = (
    "notification (entry, event, rule, position, shown, level, created_s, wanted_s,"
    " due_s, only_open, address, exercise, state)"
    " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'waiting')"
)


class NotificationState(StrEnum):
    """What became of a notification."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    NOT_NEEDED = "not_needed"
    GIVEN_UP = "given_up"


@dataclass(frozen=True)
class StoredNotification:
    """One notification.

    Attributes:
        id: Row number.
        entry: Journal entry that it is about; 0 for a test.
        event: Number of its event; 0 for a test.
        target: Rule and position of the address.
        shown: Address without its secrets.
        level: Level that was reached.
        created_s: Unix time.
        wanted_s: Unix time of the first attempt.
        due_s: Unix time of the next attempt.
        only_open: See `Plan`.
        state: What became of it.
        address: Digest of the address; empty if an earlier release stored it.
        exercise: Whether it is about an exercise.
        reached: Recipients of a mail that accepted it in an attempt that failed.
    """

    id: int
    entry: int
    event: int
    target: Target
    shown: str
    level: int
    created_s: float
    wanted_s: float
    due_s: float
    only_open: bool
    state: NotificationState
    address: str = ""
    exercise: bool = False
    reached: frozenset[str] = frozenset()


class NotificationOutbox:
    """The file of the notifications; several threads may use it.

    Args:
        path: Of the file, which only its owner may read; its folder is made.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._db = open_database(path, _TABLES, 0o600)
        rows = self._db.execute("select name from pragma_table_info('notification')")
        for name in _NEW_COLUMNS.keys() - {name for (name,) in rows.fetchall()}:
            self._db.execute(
                f"alter table notification add column {name} {_NEW_COLUMNS[name]}"
            )
            if name == "attempts":
                self._db.execute(_COUNT_ATTEMPTS)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("begin immediate")
            try:
                yield self._db
                self._db.execute("commit")
            except BaseException:
                if self._db.in_transaction:  # SQLite ends it itself on a full disk
                    self._db.execute("rollback")
                raise

    def planned(self) -> int:
        """Number of the last journal entry whose notifications are planned."""
        with self._lock:
            row = self._db.execute("select max(entry) from planned").fetchone()
        return int(row[0] or 0)

    def plan(self, rows: Iterable[tuple[Any, ...]], entry: int) -> None:
        """Store notifications, and that entries up to a number are planned.

        Args:
            rows: Made by `row_of`; one that is there already is ignored.
            entry: Number of a journal entry.
        """
        with self._transaction() as db:
            db.executemany(f"insert or ignore into {_INSERT}", rows)
            db.execute("delete from planned")
            db.execute("insert into planned values (?)", (entry,))

    def forget_after(self, entry: int) -> None:
        """Give up what is about entries after a number, which the journal has lost.

        They stay as negative numbers: the journal gives theirs to others.
        """
        with self._transaction() as db:
            db.execute(
                "update notification set entry = -entry, event = -event, state ="
                " case state when 'waiting' then 'given_up' else state end"
                " where entry > ?",
                (entry,),
            )
            db.execute("delete from planned")
            db.execute("insert into planned values (?)", (entry,))

    def add_tests(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Store tests, made by `row_of` for entry 0."""
        with self._transaction() as db:
            db.executemany(f"insert into {_INSERT}", rows)

    def addresses(self, rule: str) -> set[str]:
        """Digests of all addresses that a rule has had."""
        query = "select distinct address from notification where rule = ?"
        with self._lock:
            return {address for (address,) in self._db.execute(query, (rule,))}

    def due(self, now_s: float) -> list[StoredNotification]:
        """Waiting notifications whose time has come.

        After the clock was set back, what was created later than now and was not tried
        is due at once, and so is a repetition that would be later than the longest time
        between two.
        """
        longest_s = now_s + RETRY_S[1]
        return self._select(
            "state = 'waiting' and (due_s <= ? or (created_s > ? and due_s = wanted_s)"
            " or (due_s > ? and due_s != wanted_s))",
            (now_s, now_s, longest_s),
        )

    def of_event(self, event: int) -> list[StoredNotification]:
        """Notifications of an event, oldest first."""
        return self._select("event = ? order by id", (event,))

    def newest(self, limit: int) -> list[StoredNotification]:
        """Newest notifications."""
        return self._select("true order by id desc limit ?", (limit,))

    def _select(
        self, condition: str, values: tuple[object, ...]
    ) -> list[StoredNotification]:
        query = f"select {_COLUMNS} from notification where {condition}"  # noqa: S608
        with self._lock:
            rows = self._db.execute(query, values).fetchall()
        return [_notification(row) for row in rows]

    def attempts(self, number: int) -> list[dict[str, Any]]:
        """Last attempts of a notification, numbered, oldest first.

        The outcome is empty while an attempt lasts, or if the program ended in it.
        """
        with self._lock:
            rows = self._db.execute(
                "select attempts, at_s, outcome from attempt"
                " join notification on notification.id = attempt.notification"
                " where notification = ? order by attempt.id desc limit ?",
                (number, MAX_ATTEMPTS),
            ).fetchall()
        return [
            {"number": count - back, "at_s": at_s, "outcome": outcome or ""}
            for back, (count, at_s, outcome) in reversed(list(enumerate(rows)))
        ]

    def begin(self, numbers: Sequence[int], now_s: float) -> None:
        """Record the begin of an attempt, before anything is sent."""
        with self._transaction() as db:
            _begin(db, numbers, now_s)

    def end(
        self,
        batch: Sequence[StoredNotification],
        problem: str,
        now_s: float,
        began_s: float | None = None,
        *,
        reached: Iterable[str] = (),
    ) -> None:
        """Record the end of an attempt.

        Args:
            batch: Notifications that were sent together.
            problem: Why it failed; empty if it did not.
            now_s: Unix time.
            began_s: Begin of an attempt whose begin is not recorded.
            reached: Recipients of a mail that have accepted it until now.
        """
        with self._transaction() as db:
            if began_s is not None:
                _begin(db, [each.id for each in batch], began_s)
            for each in batch:
                count = self._finish(db, each.id, problem or DELIVERED)
                state, due_s = _after(each, problem, count, now_s)
                _set(db, each.id, state, due_s)
            texts = json.dumps(sorted(reached))
            db.executemany(
                "update notification set reached = ? where id = ?",
                [(texts, each.id) for each in batch],
            )

    def hasten(self, numbers: Iterable[int], now_s: float) -> None:
        """Let waiting notifications be due now at the latest."""
        with self._transaction() as db:
            db.executemany(
                "update notification set due_s = min(due_s, ?) where id = ?",
                [(now_s, number) for number in numbers],
            )

    def _finish(self, db: sqlite3.Connection, number: int, outcome: str) -> int:
        """Store the outcome of the last attempt, and return the number of attempts."""
        newest = db.execute(
            "select id from attempt where notification = ? order by id desc limit ?",
            (number, MAX_ATTEMPTS),
        ).fetchall()
        last, oldest = newest[0][0], newest[-1][0]
        db.execute("update attempt set outcome = ? where id = ?", (outcome, last))
        kept = "delete from attempt where notification = ? and id < ?"
        db.execute(kept, (number, oldest))
        (count,) = db.execute(
            "select attempts from notification where id = ?", (number,)
        ).fetchone()
        return int(count)

    def drop(self, number: int, state: NotificationState) -> None:
        """Set the state of a notification that will not be sent."""
        with self._transaction() as db:
            _set(db, number, state, 0.0)

    def overdue(self, now_s: float) -> list[StoredNotification]:
        """Notifications that should have been delivered already."""
        condition = "state = 'waiting' and wanted_s <= ? order by wanted_s"
        return self._select(condition, (now_s,))

    def given_up(self, since_s: float) -> list[StoredNotification]:
        """Notifications that were wanted since a time and will not be delivered."""
        return self._select("state = 'given_up' and wanted_s >= ?", (since_s,))


def row_of(
    about: tuple[int, int, int], plan: Plan, shown: str, now_s: float
) -> tuple[Any, ...]:
    """Row of a planned notification.

    Args:
        about: Numbers of journal entry and event, and the level.
        plan: When it is due.
        shown: Address without its secrets.
        now_s: Unix time.
    """
    target = (plan.target.rule, plan.target.position)
    times = (now_s, plan.due_s, plan.due_s)
    entry, event, level = about
    about_it = (plan.only_open, plan.address, plan.exercise)
    return (entry, event, *target, shown, level, *times, *about_it)


def _notification(row: tuple[Any, ...]) -> StoredNotification:
    number, entry, event, rule, position, shown, level, *times = row[:-5]
    only_open, state, address, exercise, reached = row[-5:]
    return StoredNotification(
        number,
        entry,
        event,
        Target(rule, position),
        shown,
        level,
        times[0],
        times[1],
        times[2],
        bool(only_open),
        NotificationState(state),
        address,
        bool(exercise),
        frozenset(json.loads(reached)),
    )


def _after(
    each: StoredNotification, problem: str, attempts: int, now_s: float
) -> tuple[NotificationState, float]:
    """State of a notification after an attempt, and when the next one is due."""
    if not problem:
        return NotificationState.DELIVERED, now_s
    if each.level < DANGER and now_s - each.wanted_s > GIVE_UP_S:
        return NotificationState.GIVEN_UP, now_s
    first_s, longest_s = RETRY_S
    wait_s = min(longest_s, first_s * 2.0 ** min(attempts - 1, 10))
    return NotificationState.WAITING, now_s + wait_s


def _begin(db: sqlite3.Connection, numbers: Sequence[int], now_s: float) -> None:
    db.executemany(
        "insert into attempt (notification, at_s) values (?, ?)",
        [(number, now_s) for number in numbers],
    )
    db.executemany(
        "update notification set attempts = attempts + 1 where id = ?",
        [(number,) for number in numbers],
    )


def _set(
    db: sqlite3.Connection, number: int, state: NotificationState, due_s: float
) -> None:
    db.execute(
        "update notification set state = ?, due_s = ? where id = ?",
        (str(state), due_s, number),
    )
