"""Records the messages that were put and that arrived, and finds unexcused losses."""

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import wait_until
from soak.fed_node import MARK
from soak.rig import AGENT, FED, GATEWAY, NODES, Kill, Rig

from backend_spark.ingest.segment_log import list_segments, read_segment
from spatial_mqtt.senml import decode_pack

URGENT_FROM, WINDOW_S = 4, 2.0
"""Values documented on the settings page: from 4 up on the disk when `put` returns,
the rest within `queue.window_s`. Not imported from the code under test."""

SLACK_S = 1.0
"""A commit takes time on a busy disk, and the ledger is read with a delay."""


@dataclass(frozen=True)
class Note:
    """A message that a queue has accepted.

    Attributes:
        id: Its id.
        priority: 1 to 5.
        at_s: Monotonic time after `put` returned.
        mark: Random text in its payload; None if unknown.
    """

    id: str
    priority: int
    at_s: float
    mark: str | None = None


class Ledger:
    """Follows the records of a node. A line without a time gets the current time."""

    def __init__(self, *paths: Path) -> None:
        self.notes: dict[str, Note] = {}
        self.twice: list[str] = []
        self._seen: set[tuple[Path, str]] = set()
        self.refused: Counter[int] = Counter()
        self._read = dict.fromkeys(paths, 0)
        self._lock = threading.Lock()

    def follow(self) -> None:
        """Read new lines; an incomplete line is left for the next call."""
        with self._lock:
            for path, start in self._read.items():
                if not path.exists():
                    continue
                with path.open("rb") as file:
                    file.seek(start)
                    raw = file.read()
                whole = raw[: raw.rfind(b"\n") + 1]
                self._read[path] = start + len(whole)
                for line in whole.decode("ascii", "replace").splitlines():
                    self._parse(path, line.split())

    def _parse(self, path: Path, fields: list[str]) -> None:
        match fields:
            case ["refused", priority, _at]:
                self.refused[int(priority)] += 1
            case [id_, priority, at_s, mark]:
                self._add(path, Note(id_, int(priority), float(at_s), mark))
            case [id_, priority]:
                self._add(path, Note(id_, int(priority), time.monotonic()))

    def _add(self, path: Path, note: Note) -> None:
        if (path, note.id) in self._seen:
            self.twice.append(note.id)
        self._seen.add((path, note.id))
        known = self.notes.get(note.id)
        if known is None or known.mark is None:
            self.notes[note.id] = note


class Archive:
    """Follows the ingester's log: stored messages in the order of arrival."""

    def __init__(self, folder: Path) -> None:
        self.arrived: Counter[str] = Counter()
        self.order: list[tuple[str, int]] = []
        self.marks: dict[str, str] = {}
        self.times: dict[str, float] = {}
        self.on_disk_s: list[tuple[str, float]] = []
        """Ids and monotonic times of their segments, in the order of arrival."""
        self._folder = folder
        self._read: set[str] = set()

    def follow(self) -> None:
        """Read new segments."""
        for name in map(str, list_segments(self._folder)):
            if name not in self._read:
                self._read.add(name)
                # Its inode changes last when it is published, after its fsync.
                age_s = time.time() - (self._folder / name).stat().st_ctime
                at_s = time.monotonic() - age_s
                table = read_segment(self._folder / name, ("payload",))
                for payload in table.column("payload").to_pylist():
                    self._add(payload, at_s)

    def _add(self, payload: bytes, at_s: float) -> None:
        pack = decode_pack(payload)
        id_ = str(pack.id)
        self.on_disk_s.append((id_, at_s))
        self.arrived[id_] += 1
        self.order.append((id_, pack.priority))
        self.times[id_] = pack.time_s
        if pack.readings[0].name == MARK:
            self.marks[id_] = str(pack.readings[0].value)

    def seqs(self, node: str, priority: int, after: int = 0) -> list[int]:
        """Sequence numbers of a node's messages in order of arrival, after `after`."""
        return [
            int(id_.rpartition(":")[2])
            for id_, pri in self.order[after:]
            if pri == priority and id_.startswith(f"kochi-{node}:")
        ]


@dataclass
class Verdict:
    """Result of the check.

    Attributes:
        put: Number of recorded messages.
        arrived: Number of distinct messages in the archive.
        lost: Missing messages by priority.
        unexcused: Ids that are missing without an excuse.
        oldest_lost_s: Longest time from `put` to the kill that lost the message.
        lost_at_most: Upper bound of lost messages that the nodes' queues report.
        doubled: Ids that the archive holds more than once.
        reused: Ids assigned twice, or that arrived with the content of another.
        gateway_took: Messages that the gateway's queue counts as accepted.
        gateway_ids: Distinct ids that it has recorded.
        gateway_duplicates: Deliveries that it discarded as duplicates.
        ingest_duplicates: Deliveries that the ingester discarded as duplicates.
    """

    put: int
    arrived: int
    lost: dict[int, int]
    unexcused: list[str]
    oldest_lost_s: float
    lost_at_most: int
    doubled: list[str]
    reused: list[str]
    gateway_took: int = 0
    gateway_ids: int = 0
    gateway_duplicates: int = 0
    ingest_duplicates: int = 0


@dataclass
class Witness:
    """Observes a rig and checks the promises."""

    rig: Rig
    archive: Archive = field(init=False)
    ledgers: dict[str, Ledger] = field(init=False)

    def __post_init__(self) -> None:
        """Start following."""
        rig = self.rig
        self.archive = Archive(rig.archive)
        self.ledgers = {
            AGENT: Ledger(rig.ledger(AGENT)),
            FED: Ledger(rig.notes, rig.ledger(FED)),
        }
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following."""
        self._stop.set()
        self._thread.join()

    def missing(self) -> dict[str, list[Note]]:
        """Messages of each node that were recorded and are not in the archive."""
        for ledger in self.ledgers.values():
            ledger.follow()
        noted = {n: list(led.notes.values()) for n, led in self.ledgers.items()}
        self.archive.follow()
        arrived = self.archive.arrived
        return {
            name: [note for note in notes if note.id not in arrived]
            for name, notes in noted.items()
        }

    def unexcused(self, missing: dict[str, list[Note]]) -> list[Note]:
        """The missing messages that no kill within the window explains."""
        return [
            note
            for name, notes in missing.items()
            for note in notes
            if _age_at_kill(note, name, self.rig.kills) is None
        ]

    def wait_for(self, notes: Iterable[Note], timeout_s: float) -> None:
        """Wait until some messages have arrived."""
        wanted = {note.id for note in notes}

        def are_there() -> bool:
            time.sleep(0.2)
            self.archive.follow()
            return wanted <= self.archive.arrived.keys()

        wait_until(are_there, timeout_s)

    def catch_up(self, timeout_s: float) -> None:
        """Wait until everything recorded so far has arrived or is excused."""
        until_s = time.monotonic() + timeout_s
        noted = {n.id for led in self.ledgers.values() for n in led.notes.values()}
        while left := [n for n in self.unexcused(self.missing()) if n.id in noted]:
            if time.monotonic() > until_s:
                pytest.fail(f"{len(left)} of {len(noted)} are missing: {left[:5]}")
            time.sleep(0.3)

    def drain(self, timeout_s: float) -> Verdict:
        """Wait for all messages, stop the programs, and return the verdict."""
        self.rig.pause_nodes()
        self.catch_up(timeout_s)
        if self.rig.can_pause_all:
            wait_until(lambda: self.rig.count_queued(*NODES) == 0, timeout_s)
        self.rig.stop(*self.rig.nodes)
        wait_until(lambda: self.rig.count_queued(GATEWAY) == 0, timeout_s)
        self.rig.stop()
        self.close()
        return self._verdict()

    def altered(self) -> list[str]:
        """Ids that arrived with content that differs from what was put."""
        notes = {k: n for led in self.ledgers.values() for k, n in led.notes.items()}
        return [
            id_
            for id_, mark in self.archive.marks.items()
            if id_ in notes and notes[id_].mark not in {mark, None}
        ]

    def _follow(self) -> None:
        while not self._stop.wait(0.05):
            for ledger in self.ledgers.values():
                ledger.follow()

    def _verdict(self) -> Verdict:
        missing = self.missing()
        lost = [note for notes in missing.values() for note in notes]
        ages = [
            _age_at_kill(note, name, self.rig.kills)
            for name, notes in missing.items()
            for note in notes
        ]
        notes = {k: n for led in self.ledgers.values() for k, n in led.notes.items()}
        twice = [i for led in self.ledgers.values() for i in led.twice]
        took, ids, duplicates = _lane_counts(self.rig.lane)
        return Verdict(
            put=len(notes),
            arrived=len(self.archive.arrived),
            lost=dict(Counter(note.priority for note in lost)),
            unexcused=[note.id for note in self.unexcused(missing)],
            oldest_lost_s=max((age for age in ages if age is not None), default=0.0),
            lost_at_most=sum(self.rig.lost_at_most(name) for name in self.rig.nodes),
            doubled=[i for i, count in self.archive.arrived.items() if count > 1],
            reused=twice + self.altered(),
            gateway_took=took,
            gateway_ids=ids,
            gateway_duplicates=duplicates,
            ingest_duplicates=self.rig.raw_duplicates(),
        )


def _age_at_kill(note: Note, node: str, kills: list[Kill]) -> float | None:
    """Age of a message when its node was killed; None if no kill excuses its loss."""
    if note.priority >= URGENT_FROM:
        return None
    ages = [kill.at_s - note.at_s for kill in kills if kill.victim == node]
    excused = [a for a in ages if -SLACK_S <= a <= WINDOW_S + SLACK_S]
    return max(0.0, min(excused)) if excused else None


def _lane_counts(path: Path) -> tuple[int, int, int]:
    """Accepted messages, distinct ids and duplicate deliveries of the gateway."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        took, duplicates = db.execute(
            "SELECT sum(put), sum(duplicates) FROM tally"
        ).fetchone()
        (ids,) = db.execute("SELECT sum(high - low + 1) FROM taken").fetchone()
    return took, ids, duplicates
