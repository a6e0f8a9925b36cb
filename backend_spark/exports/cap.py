"""CAP 1.2 messages for the operator to check, change and send.

Only drafts, exercises and tests: evacuation information is issued by the municipality
with its own system.

Source: OASIS Common Alerting Protocol 1.2, sections 3.2 and 3.3.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from xml.etree import ElementTree as ET

from backend_spark.errors import ExportError
from backend_spark.exports.cell_states import CellState, cell_ring
from backend_spark.i18n import level_name, reasons_of, render_japanese
from backend_spark.scoring.holds import JUDGED, UNKNOWN
from slope_science import JST
from slope_science.levels import WARNING, Cause
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import find_restrictions, level_reasons

NAMESPACE: Final = "urn:oasis:names:tc:emergency:cap:1.2"
VALIDITY: Final = timedelta(hours=1)
"""Validity of a level; a newer message is expected before it ends."""

SENDER_RULE: Final = "a name without blanks, commas, < and &"
SENDER_REMEDY: Final = "give an address such as bosai@city.example"
_PLAIN: Final = re.compile(r"[^\s,<&]+")
_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""Characters that XML 1.0 forbids; a node's name may contain them."""


def is_sender(text: str) -> bool:
    """Whether a text can be the sender of messages: it keeps `SENDER_RULE`."""
    return _PLAIN.fullmatch(text) is not None


class CapStatus(StrEnum):
    """Status of a message; only the operator may make an actual one."""

    DRAFT = "Draft"
    EXERCISE = "Exercise"
    TEST = "Test"


class CapMessageType(StrEnum):
    """Relation of a message to earlier ones."""

    ALERT = "Alert"
    UPDATE = "Update"
    CANCEL = "Cancel"


@dataclass(frozen=True)
class CapReference:
    """Reference to an earlier message.

    Attributes:
        sender: Its sender.
        identifier: Its identifier.
        sent: Its time, as written in it.
        cells: Tokens of the cells that it names, where it was read.
    """

    sender: str
    identifier: str
    sent: str
    cells: frozenset[str] = field(default=frozenset(), compare=False)

    def __str__(self) -> str:
        """The reference in the form of CAP."""
        return f"{self.sender},{self.identifier},{self.sent}"


@dataclass(frozen=True)
class CapHeader:
    """Header of a message.

    Attributes:
        sender: Id of the sender without spaces and commas, such as a mail address.
        sender_name: Name of the sender.
        sent: Time of the message, with its zone.
        status: Draft, exercise or test.
        replaces: Messages that this one updates or cancels.
        is_cancel: Whether it only cancels them.
        at: Moment of the past that its levels are of; None means the present, which in
            an exercise has the levels of an earlier time.

    Raises:
        ExportError: The sender is no valid CAP id, or there is no message to cancel.
    """

    sender: str
    sender_name: str
    sent: datetime
    status: CapStatus = CapStatus.DRAFT
    replaces: Sequence[CapReference] = ()
    is_cancel: bool = False
    at: datetime | None = None

    def __post_init__(self) -> None:
        """Check the sender and the references."""
        if not is_sender(self.sender):
            raise ExportError("--sender", SENDER_RULE, self.sender, SENDER_REMEDY)
        if self.is_cancel and not self.replaces:
            rule = "the message to cancel"
            raise ExportError("--cancels", rule, "none", "give the file that was sent")

    @property
    def kind(self) -> CapMessageType:
        """Alert, Update or Cancel."""
        if self.is_cancel:
            return CapMessageType.CANCEL
        return CapMessageType.UPDATE if self.replaces else CapMessageType.ALERT

    @property
    def identifier(self) -> str:
        """Identifier, unique for each sender and second."""
        return f"yamamori-{self.sender}-{self.sent.astimezone(JST):%Y%m%dT%H%M%S}"


_URGENCY: Final = {  # by level: urgency, severity, responseType
    5: ("Immediate", "Extreme", "Shelter"),
    4: ("Immediate", "Severe", "Evacuate"),
    3: ("Expected", "Moderate", "Prepare"),
    2: ("Future", "Minor", "Monitor"),
}
_UNKNOWN: Final = ("Unknown", "Unknown", "Assess")
"""For a held or unknown level: urgency and severity of the present are unknown."""

_HEADLINES: Final = {
    "ja-JP": "{name}に達した区画があります（{count}区画）",
    "en": "Landslide danger {name} (cells: {count})",
}
_HELD_HEADLINES: Final = {
    "ja-JP": "データがなく判定できない区画があります（最終判定：{name}、{count}区画）",
    "en": "Landslide danger unknown for lack of data: last judged {name} "
    "(cells: {count})",
}


class CapCertainty(StrEnum):
    """Certainty of an `info`, in descending order."""

    OBSERVED = "Observed"
    LIKELY = "Likely"
    POSSIBLE = "Possible"
    UNKNOWN = "Unknown"


def find_certainty(state: CellState) -> CapCertainty:
    """Certainty of the level of a cell.

    Only a flow that a second sensor confirmed is observed: a criterion that rain has
    reached makes a landslide likely. An assumed criterion, a forecast, rain from
    elsewhere, or evidence of one sensor makes it possible; of a held level the
    present is unknown, as after the hold has ended.
    """
    if not state.is_judged:
        return CapCertainty.UNKNOWN
    reasons = level_reasons(reasons_of(state.reason_codes, state.reasons))
    if find_restrictions(reasons) or (state.level or 0) < WARNING:
        return CapCertainty.POSSIBLE
    is_confirmed = any(reason.code == ReasonCode.CONFIRMED for reason in reasons)
    return CapCertainty.OBSERVED if is_confirmed else CapCertainty.LIKELY


_INSTRUCTIONS: Final = {
    "ja-JP": "この文書は観測値にもとづく案です。"
    "避難情報を発令するかどうかは市町村が判断します。",
    "en": "A draft made from observations. Whether to issue evacuation information "
    "is for the municipality to decide.",
}


def alert_xml(
    states: Iterable[CellState], header: CapHeader, min_level: int = 2
) -> bytes:
    """A message as XML in UTF-8.

    Each level from `min_level` (2 to 5) up has one `info` in Japanese and one in
    English for each certainty, with one `area` for each of its cells. An update also
    has those cells of the replaced message whose level is unknown after one of
    `WARNING` or more.

    Raises:
        ExportError: No cell has such a level; the earlier message can be cancelled. Or
            it is a draft, and the levels are not of the present.
    """
    states = list(states)
    if header.status is CapStatus.DRAFT and not header.is_cancel:
        _check_present(states, header.sent)
    root = ET.Element("alert", xmlns=NAMESPACE)
    _add_text(root, "identifier", header.identifier)
    _add_text(root, "sender", header.sender)
    _add_text(root, "sent", cap_time(header.sent))
    _add_text(root, "status", header.status)
    _add_text(root, "msgType", header.kind)
    _add_text(root, "scope", "Public")
    if header.replaces:
        _add_text(root, "references", " ".join(map(str, header.replaces)))
    if not header.is_cancel:
        _add_infos(root, states, header, min_level)
    ET.indent(root)
    text: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _check_present(states: Sequence[CellState], sent: datetime) -> None:
    """Refuse a draft that would state levels of the past as those of now."""
    moment = max((s.moment for s in states if s.moment), default=sent)
    if sent - moment > VALIDITY:
        rule = "the present for a draft"
        remedy = "give --status Exercise or Test for the past"
        raise ExportError("--at", rule, cap_time(moment), remedy)
    if states and not any(state.is_judged for state in states):
        newest = cap_time(max(state.at for state in states))
        rule = "judged now in one cell at least for a draft"
        remedy = "restore the data; cancel an earlier message by --cancels"
        raise ExportError("levels", rule, f"the newest of {newest}", remedy)


def cap_time(time: datetime) -> str:
    """A time in the form of CAP: whole seconds and a numeric zone, never Z."""
    return time.astimezone(JST).isoformat(timespec="seconds")


def read_reference(message: bytes) -> CapReference:
    """Reference to a message that `alert_xml` made.

    Raises:
        ExportError: It is no such CAP 1.2 message.
    """
    root = _parsed(message)
    names = ("sender", "identifier", "sent")
    values = {name: root.findtext(f"{{{NAMESPACE}}}{name}") or "" for name in names}
    if not all(_PLAIN.fullmatch(value) for value in values.values()):
        raise _no_message(message, "sender, identifier or sent is missing")
    codes = root.iterfind(f".//{{{NAMESPACE}}}geocode/{{{NAMESPACE}}}value")
    return CapReference(**values, cells=frozenset(code.text or "" for code in codes))


def _parsed(message: bytes) -> ET.Element:
    if b"<!" in message:  # a DTD could include files and expand without limit
        raise _no_message(message, "it has a DTD")
    try:
        return ET.fromstring(message)  # noqa: S314 - without a DTD there are no entities
    except ET.ParseError as error:
        raise _no_message(message, str(error)) from error


def _no_message(message: bytes, problem: str) -> ExportError:
    remedy = "give a file that backend-spark export --format cap wrote"
    rule = f"a CAP 1.2 message ({problem})"
    return ExportError("CAP file", rule, f"{len(message)} bytes", remedy)


def _add_infos(
    root: ET.Element, states: Iterable[CellState], header: CapHeader, min_level: int
) -> None:
    groups: dict[tuple[int, CapCertainty, str], list[CellState]] = {}
    for state in states:
        level = _stated_level(state, header)
        if level is not None and level >= min_level:
            key = level, find_certainty(state), state.state
            groups.setdefault(key, []).append(state)
    if not groups:
        rule = f"a cell of level {min_level} or more"
        remedy = "cancel the last message (--cancels), or a lower level (--min-level)"
        raise ExportError("levels", rule, "none", remedy)
    order = list(CapCertainty)

    def rank(grade: tuple[int, CapCertainty, str]) -> tuple[bool, int, int, str]:
        level, certainty, state = grade
        return state == UNKNOWN, -level, order.index(certainty), state

    for grade in sorted(groups, key=rank):
        for language in _HEADLINES:
            _add_info(root, grade, language, groups[grade], header)


def _stated_level(state: CellState, header: CapHeader) -> int | None:
    """Level that a message states of a cell; None if it does not mention the cell."""
    is_update = header.kind is CapMessageType.UPDATE
    is_named = is_update and any(state.cell in each.cells for each in header.replaces)
    if state.level is not None or not is_named:
        return state.level
    return state.last_level if (state.last_level or 0) >= WARNING else None


def _add_info(
    root: ET.Element,
    grade: tuple[int, CapCertainty, str],
    language: str,
    states: Sequence[CellState],
    header: CapHeader,
) -> None:
    info, (level, certainty, state) = ET.SubElement(root, "info"), grade
    is_judged = state == JUDGED
    urgency, severity, response = _URGENCY[level] if is_judged else _UNKNOWN
    names = level_name(level, _all_causes(states) if is_judged else ())
    name = names[language != "ja-JP"]
    headlines = _HEADLINES if is_judged else _HELD_HEADLINES
    since = _effective(states, header)
    _add_text(info, "language", language)
    _add_text(info, "category", "Geo")
    _add_text(info, "event", "土砂災害" if language == "ja-JP" else "Landslide danger")
    _add_text(info, "responseType", response)
    _add_text(info, "urgency", urgency)
    _add_text(info, "severity", severity)
    _add_text(info, "certainty", certainty)
    _add_text(info, "effective", cap_time(since))
    _add_text(info, "expires", cap_time(since + VALIDITY))
    _add_text(info, "senderName", header.sender_name)
    headline = headlines[language].format(name=name, count=len(states))
    _add_text(info, "headline", headline)
    _add_text(info, "description", "\n".join(_lines(states, language)))
    _add_text(info, "instruction", _INSTRUCTIONS[language])
    kind = "jp:keikai-level" if is_judged else "yamamori:last-level"
    _add_parameter(info, kind, str(level))
    _add_parameter(info, "yamamori:state", state)
    for each in states:
        _add_area(info, each, header)


def _effective(states: Sequence[CellState], header: CapHeader) -> datetime:
    """Time from which a message states the levels of an info.

    The row of a judged level is of the end of its step, which may lie ahead. An
    exercise has an earlier time as the present.
    """
    if header.at is None and header.status is not CapStatus.DRAFT:
        return header.sent
    now = min([header.sent, *(s.moment for s in states if s.moment is not None)])
    return max(min(now, s.at) if s.is_judged else now for s in states)


def _all_causes(states: Sequence[CellState]) -> list[Cause]:
    found = {cause for state in states for cause in state.causes}
    return [cause for cause in Cause if cause in found]


def _add_parameter(info: ET.Element, name: str, value: str) -> None:
    parameter = ET.SubElement(info, "parameter")
    _add_text(parameter, "valueName", name)
    _add_text(parameter, "value", value)


def _add_area(info: ET.Element, state: CellState, header: CapHeader) -> None:
    area = ET.SubElement(info, "area")
    place = "" if header.sender_name == header.sender else f"{header.sender_name} "
    name = f"{state.place} " if state.place else ""
    _add_text(area, "areaDesc", f"{place}{name}S2 {state.cell}")
    polygon = " ".join(f"{lat},{lon}" for lon, lat in cell_ring(state.cell))
    _add_text(area, "polygon", polygon)
    geocode = ET.SubElement(area, "geocode")
    _add_text(geocode, "valueName", "s2:token")
    _add_text(geocode, "value", state.cell)


def _lines(states: Sequence[CellState], language: str) -> list[str]:
    if language == "ja-JP":
        return [f"{_label(s)}：{'、'.join(_japanese(s))}" for s in states]
    return [f"{_label(s)}: {'; '.join(_english(s))}" for s in states]


def _label(state: CellState) -> str:
    return f"{state.place} {state.cell}".strip()


def _japanese(state: CellState) -> list[str]:
    reasons = reasons_of(state.reason_codes, state.reasons)
    return [*_last(state, 0), *map(render_japanese, reasons)]


def _english(state: CellState) -> list[str]:
    return [*_last(state, 1), *state.reasons]


def _last(state: CellState, language: int) -> list[str]:
    """The time of the last judgement of a level that is held or unknown."""
    if state.is_judged or state.known_until is None:
        return []
    level = state.last_level
    known = f"{state.known_until.astimezone(JST):%Y-%m-%d %H:%M}"
    words = (
        f"判定不能（最終 レベル{level}相当 {known}、以後データなし）",
        f"unknown: last judged level {level} at {known} JST, no data since",
    )
    return [words[language]]


def _add_text(parent: ET.Element, name: str, text: str) -> None:
    ET.SubElement(parent, name).text = _CONTROL.sub(" ", text)
