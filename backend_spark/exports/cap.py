"""A CAP 1.2 message for the operator to look at, change and send.

Never more than a draft, an exercise or a test: who issues evacuation information is
the municipality, by its own system.

Source: OASIS Common Alerting Protocol 1.2, sections 3.2 and 3.3.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import StrEnum
from typing import Final
from xml.etree import ElementTree as ET

from backend_spark.errors import ExportError
from backend_spark.exports.cell_states import CellState
from backend_spark.exports.formats import ring
from backend_spark.i18n import japanese, level_name, reasons_of

NAMESPACE: Final = "urn:oasis:names:tc:emergency:cap:1.2"
JAPAN: Final = timezone(timedelta(hours=9))
LASTS: Final = timedelta(hours=1)
"""A level counts so long at the most; the next message comes before."""

_PLAIN: Final = re.compile(r"[^\s,<&]+")
_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""XML 1.0 cannot say these, and a node's name might hold them."""


class Status(StrEnum):
    """What a message is for; an actual one is the operator's to make."""

    DRAFT = "Draft"
    EXERCISE = "Exercise"
    TEST = "Test"


class MessageType(StrEnum):
    """What a message does to those before it."""

    ALERT = "Alert"
    UPDATE = "Update"
    CANCEL = "Cancel"


@dataclass(frozen=True)
class Reference:
    """A message sent before.

    Attributes:
        sender: Who sent it.
        identifier: Its name.
        sent: When, as it says.
    """

    sender: str
    identifier: str
    sent: str

    def __str__(self) -> str:
        """As CAP writes it."""
        return f"{self.sender},{self.identifier},{self.sent}"


@dataclass(frozen=True)
class Header:
    """What stands over the levels.

    Attributes:
        sender: Name of the sender, without blanks and commas, such as an address.
        sender_name: The same for people.
        sent: Now, with its zone.
        status: Draft, exercise or test.
        replaces: Messages that this one updates or cancels.
        is_cancel: Whether it cancels them and says no more.

    Raises:
        ExportError: The sender is no CAP name, or nothing is named to cancel.
    """

    sender: str
    sender_name: str
    sent: datetime
    status: Status = Status.DRAFT
    replaces: Sequence[Reference] = ()
    is_cancel: bool = False

    def __post_init__(self) -> None:
        """Check what CAP asks of names."""
        if not _PLAIN.fullmatch(self.sender):
            rule = "a name without blanks, commas, < and &"
            remedy = "give an address such as bosai@city.example"
            raise ExportError("--sender", rule, self.sender, remedy)
        if self.is_cancel and not self.replaces:
            rule = "the message to cancel"
            raise ExportError("--cancels", rule, "none", "give the file that was sent")

    @property
    def kind(self) -> MessageType:
        """Alert, Update or Cancel."""
        if self.is_cancel:
            return MessageType.CANCEL
        return MessageType.UPDATE if self.replaces else MessageType.ALERT

    @property
    def identifier(self) -> str:
        """A name of its own for each sender and second."""
        return f"yamamori-{self.sender}-{self.sent.astimezone(JAPAN):%Y%m%dT%H%M%S}"


_MANNERS: Final = {  # urgency, severity, certainty, responseType
    5: ("Immediate", "Extreme", "Observed", "Shelter"),
    4: ("Immediate", "Severe", "Likely", "Evacuate"),
    3: ("Expected", "Moderate", "Likely", "Prepare"),
    2: ("Future", "Minor", "Possible", "Monitor"),
    1: ("Future", "Minor", "Unlikely", "None"),
}
_HEADLINES: Final = {
    "ja-JP": "{name}に達した区域があります（{count}区域）",
    "en": "Landslide danger {name} (cells: {count})",
}
_INSTRUCTIONS: Final = {
    "ja-JP": "この文書は観測値にもとづく案です。"
    "避難情報を発令するかどうかは市町村が判断します。",
    "en": "A draft made from observations. Whether to issue evacuation information "
    "is for the municipality to decide.",
}


def alert(states: Iterable[CellState], header: Header, min_level: int = 2) -> bytes:
    """The message, as XML in UTF-8.

    Each level from `min_level` up has one `info` in Japanese and one in English,
    with one `area` for each of its cells.

    Raises:
        ExportError: No cell has such a level; cancel what was said before instead.
    """
    root = ET.Element("alert", xmlns=NAMESPACE)
    _say(root, "identifier", header.identifier)
    _say(root, "sender", header.sender)
    _say(root, "sent", when(header.sent))
    _say(root, "status", header.status)
    _say(root, "msgType", header.kind)
    _say(root, "scope", "Public")
    if header.replaces:
        _say(root, "references", " ".join(map(str, header.replaces)))
    if not header.is_cancel:
        _add_infos(root, states, header, min_level)
    ET.indent(root)
    text: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def when(time: datetime) -> str:
    """A time as CAP wants it: whole seconds, a numeric zone, never Z."""
    return time.astimezone(JAPAN).isoformat(timespec="seconds")


def reference_of(message: bytes) -> Reference:
    """What a later message calls this one.

    Raises:
        ExportError: It is no CAP 1.2 message of ours.
    """
    root = _parsed(message)
    names = ("sender", "identifier", "sent")
    said = [root.findtext(f"{{{NAMESPACE}}}{name}") or "" for name in names]
    if not all(_PLAIN.fullmatch(text) for text in said):
        raise _no_message(message, "sender, identifier or sent is missing")
    return Reference(*said)


def _parsed(message: bytes) -> ET.Element:
    if b"<!" in message:  # a DTD could name files and grow without end
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
    root: ET.Element, states: Iterable[CellState], header: Header, min_level: int
) -> None:
    levels: dict[int, list[CellState]] = {}
    for state in states:
        if state.level is not None and state.level >= min_level:
            levels.setdefault(state.level, []).append(state)
    if not levels:
        rule = f"a cell of level {min_level} or more"
        remedy = "take a lower --min-level, or cancel the last message by --cancels"
        raise ExportError("levels", rule, "none", remedy)
    for level in sorted(levels, reverse=True):
        for language in _HEADLINES:
            _add_info(root, level, language, levels[level], header)


def _add_info(
    root: ET.Element,
    level: int,
    language: str,
    states: Sequence[CellState],
    header: Header,
) -> None:
    info = ET.SubElement(root, "info")
    urgency, severity, certainty, response = _MANNERS[level]
    japanese, english = level_name(level)
    name = japanese if language == "ja-JP" else english
    since = max(state.at for state in states)
    _say(info, "language", language)
    _say(info, "category", "Geo")
    _say(info, "event", "土砂災害" if language == "ja-JP" else "Landslide danger")
    _say(info, "responseType", response)
    _say(info, "urgency", urgency)
    _say(info, "severity", severity)
    _say(info, "certainty", certainty)
    _say(info, "effective", when(since))
    _say(info, "expires", when(since + LASTS))
    _say(info, "senderName", header.sender_name)
    _say(info, "headline", _HEADLINES[language].format(name=name, count=len(states)))
    _say(info, "description", "\n".join(_lines(states, language)))
    _say(info, "instruction", _INSTRUCTIONS[language])
    parameter = ET.SubElement(info, "parameter")
    _say(parameter, "valueName", "jp:keikai-level")
    _say(parameter, "value", str(level))
    for state in states:
        _add_area(info, state, header)


def _add_area(info: ET.Element, state: CellState, header: Header) -> None:
    area = ET.SubElement(info, "area")
    place = "" if header.sender_name == header.sender else f"{header.sender_name} "
    _say(area, "areaDesc", f"{place}S2 {state.cell}")
    polygon = " ".join(f"{lat},{lon}" for lon, lat in ring(state.cell))
    _say(area, "polygon", polygon)
    geocode = ET.SubElement(area, "geocode")
    _say(geocode, "valueName", "s2:token")
    _say(geocode, "value", state.cell)


def _lines(states: Sequence[CellState], language: str) -> list[str]:
    if language == "ja-JP":
        reasons = [map(japanese, reasons_of(s.reason_codes, s.reasons)) for s in states]
        pairs = zip(states, reasons, strict=True)
        return [f"{s.cell}：{'、'.join(each)}" for s, each in pairs]
    return [f"{s.cell}: {'; '.join(s.reasons)}" for s in states]


def _say(parent: ET.Element, name: str, text: str) -> None:
    ET.SubElement(parent, name).text = _CONTROL.sub(" ", text)
