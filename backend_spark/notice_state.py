"""State of notices and drills, in files: requested, published, accepted by brokers.

The current level of each cell, from which notices are made, is read here too. The
console writes the requests for drills, since only the publisher has the key and the
connections to the Managers; the publisher writes the other files.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, Final

import msgspec

from backend_spark.i18n import reasons_of
from backend_spark.scoring.holds import (
    HELD,
    JUDGED,
    NO_LIMITS,
    UNKNOWN,
    HoldLimits,
    PresentLevel,
)
from backend_spark.tables.reader import DeltaTables
from service_runtime.decoding import DECODE_ERRORS, decode_json
from service_runtime.errors import FieldError
from service_runtime.files import read_json_or, write_atomic, write_best_effort
from slope_science.levels import LOWEST, iter_chain
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason, find_restrictions, level_reasons
from spatial_mqtt.announcements import MAX_DRILL_S, Drill, Notice
from spatial_mqtt.cells import Cell
from spatial_mqtt.topics import cell_topic, drill_topic, notice_topic

log = logging.getLogger(__name__)

AHEAD_S = 600.0
"""The time of a step is its end, which may be ahead of now."""

_TICK_S = 0.001
_BEFORE: Final = "before"
"""Key beside those of a notice in the file; earlier versions ignore it."""

ROW_COLUMNS: Final = (
    "cell",
    "at",
    "level",
    "notice_level",
    "state",
    "known_until",
    "reasons",
    "reason_codes",
    "n_nodes",
)

_OWN_CODES: Final = {
    HELD: (ReasonCode.HELD, ReasonCode.GRID_SOIL_WATER),
    UNKNOWN: (ReasonCode.NOT_JUDGED,),
}
"""First codes of the reason, by state, where the analyses give the state themselves."""


@dataclass(frozen=True)
class NoticePolicy:
    """When a level is published.

    Attributes:
        from_level: Lowest level that is published.
        hold_s: How long a notice is valid; it is renewed after half of that.
        calm_s: How long a level must have been lower before the notice is lowered.
    """

    from_level: int
    hold_s: float
    calm_s: float = 0.0


@dataclass(frozen=True)
class CurrentLevel:
    """Present level of a cell.

    Attributes:
        present: Level and state.
        at_s: Unix time of the newest step.
        doubts: Codes that restrict the level; see `Notice.doubts`.
        by_analyses: Whether the row is one by JMA's analyses; see `SilentCells`.
        has_fallen: Whether the analyses of such a row no longer raise the level of
            the readings, which the row has again.
    """

    present: PresentLevel
    at_s: float = 0.0
    doubts: tuple[str, ...] = ()
    by_analyses: bool = False
    has_fallen: bool = False


class NoticeState:
    """Published notices by topic.

    Args:
        policy: When a level is published.
        path: File of the notices, so that their times never go back after a restart.
        limits: When the hold of a level ends.
    """

    def __init__(
        self, policy: NoticePolicy, path: Path, limits: HoldLimits = NO_LIMITS
    ) -> None:
        self._terms = policy
        self._path = path
        self._limits = limits
        stored = _read(path)
        self.notices: dict[str, Notice] = {t: n for t, (n, _) in stored.items()}
        # Levels of notices before the analyses alone raised them.
        self._before = {t: level for t, (_, level) in stored.items() if level}
        self._is_saved = True
        self._last_at_s: dict[str, dict[int, float]] = {}
        self._seen_s: dict[str, float] = {}
        self._fallen: dict[str, CurrentLevel] = {}

    def update(
        self, levels: Mapping[str, CurrentLevel], now_s: float
    ) -> dict[str, Notice]:
        """Update the notices from the current levels.

        A rise is published at once, a fall after `calm_s`, so that a fluctuating level
        does not switch sirens on and off. Only a judged level lowers or withdraws a
        notice. That of a silent cell is renewed as held until the hold ends; that of a
        cell whose level is unknown runs until it expires. What the analyses alone
        raised falls with them, to the level that the notice had before.

        Args:
            levels: Present level by cell token; silent cells may be absent.
            now_s: Unix time.

        Returns:
            New notices by topic. They are in the file, unless that cannot be written:
            then they are published all the same, and each call tries again.
        """
        new: dict[str, Notice] = {}
        before = dict(self._before)
        current = dict(self._by_topic(levels))
        for topic, found in current.items():
            notice = self._from_level(topic, found, now_s)
            if notice is not None:
                new[topic] = notice
        for topic in self.notices.keys() - current.keys():
            notice = self._of_silent_cell(topic, now_s)
            if notice is not None:
                new[topic] = notice
        self.notices.update(new)
        expired = [t for t, n in self.notices.items() if self._is_expired(n, now_s)]
        for topic in expired:
            del self.notices[topic]
            self._last_at_s.pop(topic, None)
            self._seen_s.pop(topic, None)
            self._before.pop(topic, None)
            self._fallen.pop(topic, None)
        is_changed = bool(new or expired) or before != self._before
        self._is_saved = self._is_saved and not is_changed
        if not self._is_saved:
            self._write()
        return new

    def _by_topic(
        self, levels: Mapping[str, CurrentLevel]
    ) -> Iterator[tuple[str, CurrentLevel]]:
        for token, found in levels.items():
            try:
                yield notice_topic(cell_topic(Cell.from_token(token))), found
            except FieldError as error:
                log.error("the levels table has an invalid cell: %s", error)  # noqa: TRY400

    def _from_level(
        self, topic: str, found: CurrentLevel, now_s: float
    ) -> Notice | None:
        present, known = found.present, self.notices.get(topic)
        before = self._before.get(topic) if found.has_fallen else None
        level = max(present.level or LOWEST, before or LOWEST)
        self._fallen.pop(topic, None)
        if before is not None and known is not None and level < known.level:
            self._fallen[topic] = found  # for when its row is old
        if present.level is None and before != LOWEST:
            return None
        known_s = present.known_until_s or found.at_s
        self._seen_s[topic] = known_s
        is_held = present.state != JUDGED and before is None
        if is_held and known is not None and known.until_s > now_s:
            level = max(level, known.level)
        level = self._highest_recent(topic, level, now_s)
        is_over = before is not None and level < self._terms.from_level
        held_s = None if present.state == JUDGED or is_over else known_s
        notice = self._next_notice(known, level, now_s, held_s, found.doubts)
        self._keep_before(topic, found, notice)
        return notice

    def _keep_before(
        self, topic: str, found: CurrentLevel, notice: Notice | None
    ) -> None:
        """Keep the level of a notice before the analyses alone raised it.

        Args:
            topic: Topic of the notice.
            found: Present level of its cell.
            notice: The new notice; None if it stays.
        """
        known = self.notices.get(topic)
        shown = LOWEST if known is None else known.level
        before = self._before.pop(topic, None)
        if found.by_analyses:
            before = shown if before is None else before
        elif before is not None:
            level = found.present.level or LOWEST
            before = level if found.present.state == JUDGED else max(before, level)
        if before is not None and before < (shown if notice is None else notice.level):
            self._before[topic] = before

    def _of_silent_cell(self, topic: str, now_s: float) -> Notice | None:
        """Renewal of the notice in force of a cell without current rows, as held."""
        if topic in self._fallen:
            return self._from_level(topic, self._fallen[topic], now_s)
        known = self.notices[topic]
        known_s = self._seen_s.get(topic, known.known_until_s or known.at_s)
        is_in_force = not known.withdrawn and known.until_s > now_s
        if not is_in_force or self._limits.has_ended(known.level, known_s, now_s):
            return None
        # A judged level that comes back must be low for `calm_s`.
        self._highest_recent(topic, known.level, now_s)
        return self._next_notice(known, known.level, now_s, known_s, known.doubts)

    def _highest_recent(self, topic: str, level: int, now_s: float) -> int:
        """The highest level of the last `calm_s`.

        After a restart the published level counts as current, so that it is held for
        too long rather than too short.
        """
        known = self.notices.get(topic)
        if topic not in self._last_at_s:
            is_in_force = known is not None and not known.withdrawn
            initial = {known.level: now_s} if known and is_in_force else {}
            self._last_at_s[topic] = initial
        last_at_s = self._last_at_s[topic]
        last_at_s[level] = now_s
        for each, at_s in list(last_at_s.items()):
            # A clock that was set back must not hold a level for longer.
            last_at_s[each] = min(at_s, now_s)
            if now_s - at_s > self._terms.calm_s:
                del last_at_s[each]
        return max(last_at_s)

    def _next_notice(
        self,
        known: Notice | None,
        level: int,
        now_s: float,
        held_s: float | None,
        doubts: tuple[str, ...],
    ) -> Notice | None:
        """The notice to publish; None without a change or renewal.

        Args:
            known: The published one.
            level: Level to publish.
            now_s: Unix time.
            held_s: Unix time of the last judgement, if the level is held.
            doubts: `Notice.doubts`.
        """
        terms = self._terms
        # A clock that was set back must not make the notice older than the last one.
        at_s = now_s if known is None else max(now_s, known.at_s + _TICK_S)
        if level < terms.from_level:
            if known is None or known.withdrawn or held_s is not None:
                return None
            return Notice(at_s=at_s, withdrawn=True)
        notice = Notice(
            level,
            now_s + terms.hold_s,
            at_s=at_s,
            state=JUDGED if held_s is None else HELD,
            known_until_s=held_s or 0.0,
            doubts=doubts,
        )
        is_new = known is None or any(
            getattr(known, name) != getattr(notice, name)
            for name in ("level", "state", "doubts")
        )
        is_due = known is None or known.until_s - now_s <= terms.hold_s / 2
        return notice if is_new or is_due else None

    def _is_expired(self, notice: Notice, now_s: float) -> bool:
        """Whether a notice is neither in force nor needed to compare times with."""
        return now_s - max(notice.until_s, notice.at_s) > 2 * self._terms.hold_s

    def _write(self) -> None:
        texts = {topic: n.encode().decode() for topic, n in self.notices.items()}
        for topic, level in self._before.items():
            texts[topic] = json.dumps(json.loads(texts[topic]) | {_BEFORE: level})
        self._is_saved = write_best_effort(self._path, json.dumps(texts).encode())


def read_notices(path: Path) -> dict[str, Notice]:
    """Published notices by topic; none if the file is missing or damaged."""
    return {topic: notice for topic, (notice, _) in _read(path).items()}


def _read(path: Path) -> dict[str, tuple[Notice, int | None]]:
    """Notices by topic, and their levels before the analyses raised them."""
    try:
        texts = json.loads(path.read_text())
        return {
            topic: (Notice.decode(text.encode()), json.loads(text).get(_BEFORE))
            for topic, text in texts.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        log.warning("cannot read the notices published before: %s", error)
        return {}


class LevelReader:
    """Reads the present level of each cell.

    A cell that is silent for longer than a level is current is in a reading only if its
    row is new or has changed, as in the first reading or after a delay: otherwise the
    notice in force carries it.

    Args:
        tables: The tables.
        max_age_s: Age from which a level is not current.
        limits: When holds end.
    """

    def __init__(
        self, tables: DeltaTables, max_age_s: float, limits: HoldLimits = NO_LIMITS
    ) -> None:
        self._tables = tables
        self._max_age_s = max_age_s
        self._limits = limits
        self._rows: dict[str, Mapping[str, Any]] = {}

    def __call__(self, now_s: float) -> Mapping[str, CurrentLevel]:
        """Present levels by cell token."""
        back_s = max(self._limits.hold_s, self._max_age_s)
        since, until = (
            datetime.fromtimestamp(at_s, UTC)
            for at_s in (now_s - back_s, now_s + AHEAD_S)
        )
        newest = self._tables.newest_levels(ROW_COLUMNS, since, until)
        current_s, before = now_s - self._max_age_s, self._rows
        self._rows = {row["cell"]: row for row in newest}
        rows = (
            row
            for row in newest
            if row["at"].timestamp() >= current_s or row != before.get(row["cell"])
        )
        return select_current_levels(rows, now_s, self._max_age_s, self._limits)


def select_current_levels(
    newest: Iterable[Mapping[str, Any]],
    now_s: float,
    max_age_s: float,
    limits: HoldLimits = NO_LIMITS,
) -> dict[str, CurrentLevel]:
    """Present levels by cell token, from the newest row of each cell.

    Args:
        newest: Rows with `ROW_COLUMNS`.
        now_s: Unix time.
        max_age_s: Age from which a level is not current.
        limits: When holds end.
    """
    found = {}
    for row in newest:
        reasons = level_reasons(reasons_of(row["reason_codes"], row["reasons"] or ()))
        found[row["cell"]] = CurrentLevel(
            PresentLevel.of_row(_as_noticed(row), now_s, limits, max_age_s),
            row["at"].timestamp(),
            find_restrictions(reasons),
            row.get("n_nodes") == 0,
            _has_fallen(row, reasons),
        )
    return found


def _has_fallen(row: Mapping[str, Any], reasons: Sequence[Reason]) -> bool:
    """Whether a row by the analyses has the level of the readings again."""
    own = _OWN_CODES.get(row.get("state") or JUDGED)
    if row.get("n_nodes") != 0 or own is None:
        return False
    codes = tuple(each.code for reason in reasons[-1:] for each in iter_chain(reason))
    return codes[: len(own)] != own


def _as_noticed(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row with the level for notices as its level."""
    level = row.get("notice_level")
    return row if level is None else {**row, "level": level}


NOTICES_FILE: Final = "notices.json"
SENT_FILE: Final = "notices-sent.json"
MAX_TOPICS: Final = 50_000


class SentOrder(msgspec.Struct):
    """The newest notice or drill of a topic that a broker accepted.

    Attributes:
        at_s: `Notice.at_s` or `Drill.at_s`.
        accepted: Unix time of the acceptance (PUBACK) of each broker, by ``host:port``.
    """

    at_s: float
    accepted: dict[str, float] = {}


def read_sent(data: Path) -> dict[str, SentOrder]:
    """What the brokers accepted, by topic; empty without the record."""
    return read_json_or(data / SENT_FILE, dict[str, SentOrder], {})


@dataclass
class DeliveryRecord:
    """Record of the notices and drills that the brokers accepted, for the publisher.

    Attributes:
        data: The data folder.
    """

    data: Path
    _sent: dict[str, SentOrder] = field(default_factory=dict)
    _is_new: bool = False

    def __post_init__(self) -> None:
        """Go on from the record of the last run."""
        self._sent = read_sent(self.data)

    def accept(self, topic: str, at_s: float, broker: str, now_s: float) -> None:
        """A broker has accepted a notice or drill; only the first time counts."""
        known = self._sent.get(topic)
        if known is None or known.at_s < at_s:
            known = self._sent[topic] = SentOrder(at_s)
        if known.at_s == at_s and broker not in known.accepted:
            known.accepted[broker] = now_s
            self._is_new = True

    def save(self) -> None:
        """Write the record if it is new; the oldest topics are dropped.

        If it cannot be written, the next call tries again.
        """
        if not self._is_new:
            return
        newest = sorted(self._sent.items(), key=lambda each: -each[1].at_s)
        self._sent = dict(newest[:MAX_TOPICS])
        rows = msgspec.to_builtins(self._sent)
        path = self.data / SENT_FILE
        self._is_new = not write_best_effort(path, json.dumps(rows).encode())


DRILLS_FILE: Final = "drills.json"
MIN_DRILL_LEVEL: Final = 2
KEPT_S: Final = 7 * 86_400.0
"""How long an ended drill is shown."""


def topic_of_drill(cell: str) -> str:
    """Topic of the drill of a cell.

    Raises:
        FieldError: The token is not that of a cell.
    """
    return drill_topic(cell_topic(Cell.from_token(cell)))


@dataclass(frozen=True)
class DrillRequests:
    """The file of the requests for drills: the newest of each cell.

    Attributes:
        path: The file; it need not exist.
    """

    path: Path
    _warned: list[str] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def read(self) -> dict[str, Drill]:
        """The newest request of each cell; those of a damaged file are ignored."""
        try:
            return decode_json(self.path.read_bytes(), dict[str, Drill])
        except FileNotFoundError:
            return {}
        except (OSError, *DECODE_ERRORS) as error:
            if str(error) not in self._warned:
                self._warned[:] = [str(error)]
                log.error("%s: no drill is published: %s", self.path, error)  # noqa: TRY400
            return {}

    def start(self, cell: str, level: int, duration_s: float, now_s: float) -> Drill:
        """Request a drill of a cell.

        Raises:
            FieldError: Level, duration or cell are out of range; nothing is written.
        """
        topic_of_drill(cell)
        if level < MIN_DRILL_LEVEL:
            raise FieldError("level", f"{MIN_DRILL_LEVEL} or more", level)
        if not 1 <= duration_s <= MAX_DRILL_S:
            raise FieldError("duration_s", f"1 to {MAX_DRILL_S:g}", duration_s)
        try:
            drill = Drill(level, now_s + duration_s, now_s)
        except ValueError as error:
            rule = f"a level of the ladder from {MIN_DRILL_LEVEL}"
            raise FieldError("level", rule, level, str(error)) from error
        self._write(cell, drill, now_s)
        return drill

    def end(self, cell: str, now_s: float) -> Drill:
        """End the drill of a cell before its time."""
        drill = Drill(LOWEST, now_s, now_s, withdrawn=True)
        self._write(cell, drill, now_s)
        return drill

    def _write(self, cell: str, drill: Drill, now_s: float) -> None:
        with self._lock:  # two requests at once must not replace one another
            known = self.read()
            kept = {c: d for c, d in known.items() if now_s - d.at_s <= KEPT_S}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.path, msgspec.json.encode({**kept, cell: drill}))


def due_drills(requests: DrillRequests, now_s: float) -> dict[str, Drill]:
    """Drills to publish by their topic: those that have not ended, or end another."""
    found = {}
    for cell, drill in requests.read().items():
        is_fresh = drill.withdrawn and now_s - drill.at_s < MAX_DRILL_S
        if is_fresh or now_s < drill.until_s:
            found[topic_of_drill(cell)] = drill
    return found
