"""Texts of notifications, in English and Japanese."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from backend_spark.console.audit_log import JournalEntry
from backend_spark.console.events import Event, begin_s
from backend_spark.console.notifications.channels import Message
from backend_spark.console.report import when
from backend_spark.i18n import (
    CAUSES,
    HANDOVER_WORDS,
    reasons_of,
    render_both,
    render_japanese,
)
from slope_science.levels import Cause, observed_causes
from slope_science.reasons import render_english

MAX_LISTED: Final = 10
"""Events that a text lists; more slopes are counted."""

MAX_REASONS: Final = 3

_CAUSES: Final = {Cause.RAIN: ("雨", "rain"), **CAUSES}

NameOf = Callable[[str], str]
"""Name of the place of a cell; empty if it has none."""


@dataclass(frozen=True)
class Rise:
    """A rise of which is notified.

    Attributes:
        event: The event.
        entry: Journal entry of the rise.
        highest: Entry of the highest rise of the event since then, which the text
            states: an escalation, or a message after an outage, would else state a
            level that the event has left behind.
    """

    event: Event
    entry: JournalEntry
    highest: JournalEntry

    @property
    def level(self) -> int:
        """Level that the text states."""
        return int(self.highest.body["level"])

    @property
    def measured_s(self) -> int:
        """Unix time of the measurement, of a message that came late; else 0."""
        return _measured_s(self.entry)


@dataclass(frozen=True)
class MessageTexts:
    """Makes messages in one language.

    Attributes:
        language: ``ja`` or ``en``.
        town: Name of the municipality.
        link: Address of the pages; empty if unknown.
        exercise: Whether past data are taken as the present.
        escalated: Whether nobody had decided about the events in time.
        name_of: Names of cells.
    """

    language: str
    town: str
    link: str
    exercise: bool
    escalated: bool
    name_of: NameOf

    def message(
        self, message_id: str, rises: Sequence[Rise], lost: Sequence[int] = ()
    ) -> Message:
        """Message about some rises; the text has each event once, by its highest.

        Events in force come first, so that none is hidden by one that is over; then the
        highest level. The data have all rises in their order.

        Args:
            message_id: See `Message`.
            rises: The rises, the highest level first.
            lost: Levels of events whose records are lost; the text begins with them.
        """
        ordered = sorted(rises, key=_urgency)
        highest: dict[int, Rise] = {}
        for rise in ordered:
            highest.setdefault(rise.event.number, rise)
        parts = [self._part(rise) for rise in list(highest.values())[:MAX_LISTED]]
        if lost:
            parts.insert(0, _Part("", self._lost(max(lost)), ()))
        note = self._say(
            "観測値と基準の比較であり、警報や避難情報ではありません。",
            "Observations compared with criteria; no official warning.",
        )
        draft = _Draft(parts, _count_slopes(rises) + len(lost), self._others, note)
        title, events = self._title(ordered, lost), list(map(self._data, rises))
        return Message(message_id, title, draft.within, self.link, events)

    def test(self, message_id: str) -> Message:
        """Message that shows that an address works."""
        title = self._say("【試験】通知の試験", "[TEST] Test of the notifications")
        text = self._say(
            "これは試験です。危険は生じていません。",
            "This is a test. There is no danger.",
        )
        title = f"{title} {self.town}".strip()
        within = _Draft([], 0, self._others, text).within
        return Message(message_id, title, within, self.link, [])

    def _title(self, rises: Sequence[Rise], lost: Sequence[int]) -> str:
        others = self._others(_count_slopes(rises) + len(lost) - 1)
        marks = [self._say("【訓練】", "[EXERCISE]")] if self.exercise else []
        if self.escalated:
            marks.append(self._say("【未対応】", "[NOT ACKNOWLEDGED]"))
        if not lost and all(rise.event.over_s is not None for rise in rises):
            marks.append(self._end_mark(rises))
        if not lost and all(rise.measured_s for rise in rises):
            marks.append(self._say("【遅れて受信】", "[RECEIVED LATE]"))
        if lost and (not rises or _urgency(rises[0]) > (False, -max(lost))):
            first = self._lost(max(lost))
        else:
            first = f"{self._level_text(rises[0])} {self._place(rises[0].event)}"
        words = " ".join(filter(None, (self.town, first, others)))
        # A name with a line break must not end the header of a mail.
        return " ".join(("".join(marks) + words).split())

    def _end_mark(self, rises: Sequence[Rise]) -> str:
        """Mark of events that have all ended; calm only if all were judged calm."""
        if all(rise.event.cell for rise in rises):
            return self._say("【終息】", "[OVER]")
        return self._say("【終了】", "[ENDED]")

    def _lost(self, level: int) -> str:
        """Level of an event of which nothing else is known."""
        return self._say(
            f"レベル{level}相当の通知"
            "（記録が失われたため詳細不明。コンソールで確認してください）",
            f"Notification of the equivalent to level {level} (its record is lost, and "
            "its details are unknown; check the console)",
        )

    def _others(self, count: int) -> str:
        """How many slopes are not named; empty if all are."""
        return self._say(f"ほか {count} か所", f"and {count} more") if count else ""

    def _part(self, rise: Rise) -> "_Part":
        body = rise.highest.body
        at = when(begin_s(rise.highest))
        since = self._say(f"{at} から", f"since {at} JST")
        render = render_japanese if self.language == "ja" else render_english
        reasons = reasons_of(body.get("reason_codes"), body["reasons"])
        why = [f"- {render(reason)}" for reason in reasons]
        head = f"{self._place(rise.event)}  {self._level_text(rise)}  {since}"
        head = "\n".join([head, *self._late(rise), *self._over(rise.event)])
        return _Part(rise.event.slope, head, why)

    def _late(self, rise: Rise) -> list[str]:
        """When the values of a message that came late were measured."""
        measured_s = _measured_s(rise.highest)
        if not measured_s:
            return []
        at = when(measured_s)
        return [
            self._say(f"{at} の観測を遅れて受信", f"measured {at} JST, received late")
        ]

    def _over(self, event: Event) -> list[str]:
        """That an event has ended, in a message that was delivered late."""
        if event.over_s is None:
            return []
        at = self._say(when(event.over_s), f"{when(event.over_s)} JST")
        if event.cell is None:
            # Nothing judges that a slope outside all cells is calm.
            return [HANDOVER_WORDS[self.language]["quiet"].format(at)]
        return [self._say(f"{at} に終息", f"over since {at}")]

    def _level_text(self, rise: Rise) -> str:
        """Level and what was measured: a wire is not the criterion of rain."""
        body = rise.highest.body
        causes = observed_causes(reasons_of(body.get("reason_codes"), body["reasons"]))
        at = ("ja", "en").index(self.language)
        names = [_CAUSES[each][at] for each in sorted(causes)]
        if self.language == "ja":
            return f"レベル{rise.level}相当" + (
                f"（{'・'.join(names)}）" if names else ""
            )
        text = f"Equivalent to level {rise.level}"
        return f"{text} ({', '.join(names)})" if names else text

    def _place(self, event: Event) -> str:
        nodes = ", ".join(sorted(event.nodes))
        if event.cell is None:
            return nodes
        return self.name_of(event.cell) or self._say(
            f"メッシュ {event.cell}", f"cell {event.cell}"
        )

    def _data(self, rise: Rise) -> dict[str, Any]:
        event, body = rise.event, rise.entry.body
        return {
            "event": event.number,
            "change": rise.entry.id,
            "cell": event.cell,
            "place": event.cell and self.name_of(event.cell),
            "nodes": sorted(event.nodes),
            "level": body["level"],
            "over_s": event.over_s,
            "at_s": body["step_s"],
            "measured_s": rise.measured_s or None,
            "causes": sorted(event.causes),
            "reasons": render_both(
                reasons_of(body.get("reason_codes"), body["reasons"])
            ),
            "exercise": self.exercise,
        }

    def _say(self, ja: str, en: str) -> str:
        return ja if self.language == "ja" else en


@dataclass(frozen=True)
class _Part:
    """What a text says of one event.

    Attributes:
        slope: Of the event.
        head: Place, level and time.
        reasons: A line each.
    """

    slope: str
    head: str
    reasons: Sequence[str]


@dataclass(frozen=True)
class _Draft:
    """A text that is composed for a number of characters.

    Attributes:
        parts: What may be in it, the most urgent first.
        count: Number of slopes.
        others: Line about slopes that are not named; empty for none.
        note: Last sentence.
    """

    parts: Sequence[_Part]
    count: int
    others: Callable[[int], str]
    note: str

    def within(self, most: int) -> str:
        """Text of at most a number of characters, cut only between lines.

        Heads come first, then reasons. The last sentence is left out if there would be
        no head beside it. Empty if nothing fits.
        """
        for note in (self.note, ""):
            for number in range(len(self.parts), 0, -1):
                parts = self.parts[:number]
                others = self.others(self.count - len({each.slope for each in parts}))
                blocks = [[each.head] for each in parts]
                end = [each for each in (others, note) if each]
                room = most - len(_joined(blocks, end))
                if room >= 0:
                    _add_reasons(blocks, parts, room)
                    return _joined(blocks, end)
        return self.note if len(self.note) <= most else ""


def _add_reasons(blocks: list[list[str]], parts: Sequence[_Part], room: int) -> None:
    """Add reasons while they fit: the first of each event, then the second."""
    for rank in range(MAX_REASONS):
        for block, part in zip(blocks, parts, strict=True):
            is_next = len(block) == rank + 1 and rank < len(part.reasons)
            if is_next and len(part.reasons[rank]) < room:
                block.append(part.reasons[rank])
                room -= len(part.reasons[rank]) + 1


def _joined(blocks: Sequence[Sequence[str]], end: Sequence[str]) -> str:
    return "\n\n".join(["\n".join(block) for block in blocks] + list(end))


def _urgency(rise: Rise) -> tuple[bool, int]:
    return rise.event.over_s is not None, -rise.level


def _measured_s(entry: JournalEntry) -> int:
    return int(entry.body.get("measured_s", 0))


def _count_slopes(rises: Sequence[Rise]) -> int:
    return len({rise.event.slope for rise in rises})
