"""CAP messages of the console: drafts that analysts make, update and cancel; the feed.

Source: OASIS Common Alerting Protocol 1.2; Atom, RFC 4287.
"""

import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from xml.etree import ElementTree as ET

from backend_spark.console.audit_log import Journal, JournalEntry
from backend_spark.console.level_grid import utc_time
from backend_spark.errors import ExportError
from backend_spark.exports import cap
from backend_spark.exports.cell_states import CellState
from service_runtime.files import write_atomic

KIND: Final = "cap"
MAX_LISTED: Final = 100
ATOM: Final = "http://www.w3.org/2005/Atom"
ATOM_TYPE: Final = "application/atom+xml"
CAP_TYPE: Final = "application/cap+xml"
_ID: Final = "urn:yamamori:cap"


@dataclass(frozen=True)
class StoredMessage:
    """A message that was made.

    Attributes:
        reference: Sender, identifier and time, as later messages name it.
        kind: Alert, Update or Cancel.
        status: Draft, Exercise or Test.
        title: Its first headline.
        who: Account that made it.
        at_s: Unix time at which it was made.
        digest: SHA-256 of its XML, and name of its file.
    """

    reference: cap.CapReference
    kind: cap.CapMessageType
    status: cap.CapStatus
    title: str
    who: str
    at_s: float
    digest: str

    @classmethod
    def of_entry(cls, entry: JournalEntry) -> "StoredMessage":
        """Message of an entry of the journal."""
        body = entry.body
        return cls(
            cap.CapReference(body["sender"], entry.subject, body["sent"]),
            cap.CapMessageType(body["type"]),
            cap.CapStatus(body["status"]),
            body["title"],
            entry.who,
            entry.at_s,
            body["sha256"],
        )

    @property
    def identifier(self) -> str:
        """Identifier of the message."""
        return self.reference.identifier


@dataclass
class CapMessages:
    """Makes and keeps messages; for several threads.

    The journal has one entry for each; their XML is in files beside it, by digest.

    Attributes:
        journal: The journal.
        folder: Folder of the files.
    """

    journal: Journal
    folder: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def newest(self) -> list[StoredMessage]:
        """The newest messages, newest first."""
        return list(self._read(limit=MAX_LISTED))

    def _read(self, limit: int = -1) -> Iterator[StoredMessage]:
        """Messages, newest first; all by default."""
        entries = self.journal.read(KIND, limit=limit)
        return (StoredMessage.of_entry(entry) for entry in entries)

    def in_force(self, status: cap.CapStatus) -> StoredMessage | None:
        """The message that an update or a cancellation replaces; None without one.

        Args:
            status: Of the messages: an exercise replaces no draft.
        """
        newest = next((each for each in self._read() if each.status is status), None)
        is_over = newest is None or newest.kind is cap.CapMessageType.CANCEL
        return None if is_over else newest

    def make(
        self,
        kind: cap.CapMessageType,
        states: Sequence[CellState],
        sender: cap.CapHeader,
        who: str,
        replaces: str | None = None,
    ) -> StoredMessage:
        """Make a message, and keep it.

        Args:
            kind: What it does.
            states: States of the cells.
            sender: Header with sender, time and status.
            who: Account that makes it.
            replaces: Identifier of the message that must be in force; None for any.

        Raises:
            ExportError: There is nothing to update or cancel, or a message is in force
                already, or another one, or the levels allow no message.
        """
        with self._lock:
            header = self._header(kind, sender)
            if replaces not in {None, *(each.identifier for each in header.replaces)}:
                rule, remedy = "the message in force", "look at that one first"
                raise ExportError("replaces", rule, str(replaces), remedy)
            content = cap.alert_xml(states, header)
            digest = hashlib.sha256(content).hexdigest()
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self.folder / f"{digest}.xml", content)
            reference = cap.read_reference(content)
            body = {
                "sender": reference.sender,
                "sent": reference.sent,
                "type": header.kind,
                "status": header.status,
                "title": _title(content, header),
                "replaces": [each.identifier for each in header.replaces],
                "sha256": digest,
            }
            at_s = header.sent.timestamp()
            self.journal.write(at_s, KIND, reference.identifier, who, body)
            return self.newest()[0]

    def _header(self, kind: cap.CapMessageType, sender: cap.CapHeader) -> cap.CapHeader:
        replaced = self.in_force(sender.status)
        is_new = kind is cap.CapMessageType.ALERT
        if is_new is not (replaced is None):
            rule = "Alert if no message is in force, else Update or Cancel"
            raise ExportError("type", rule, kind, "load the page again")
        header = replace(
            sender,
            replaces=() if replaced is None else (self._reference(replaced),),
            is_cancel=kind is cap.CapMessageType.CANCEL,
        )
        if replaced is not None:  # what is referred to must be earlier
            later = utc_time(replaced.at_s + 1)
            header = replace(header, sent=max(header.sent, later))
        return self._with_own_identifier(header)

    def _reference(self, message: StoredMessage) -> cap.CapReference:
        """Reference with the cells of a message, if its file is there."""
        content = self.read(message.identifier)
        return message.reference if content is None else cap.read_reference(content)

    def _with_own_identifier(self, header: cap.CapHeader) -> cap.CapHeader:
        """Move a header to the next second whose identifier no message has.

        Identifiers have whole seconds, and the clock may have been set back.
        """
        known = {entry.subject for entry in self.journal.read(KIND)}
        while header.identifier in known:
            header = replace(header, sent=header.sent + timedelta(seconds=1))
        return header

    def read(self, identifier: str) -> bytes | None:
        """XML of a message; None if there is none."""
        found = (each for each in self._read() if each.identifier == identifier)
        message = next(found, None)
        if message is None:
            return None
        try:
            return (self.folder / f"{message.digest}.xml").read_bytes()
        except OSError:
            return None


def _title(content: bytes, header: cap.CapHeader) -> str:
    headline = ET.fromstring(content).findtext(f".//{{{cap.NAMESPACE}}}headline")  # noqa: S314 - made here
    return headline or f"{header.kind} {header.replaces[0].identifier}"


def atom_feed(
    messages: Sequence[StoredMessage], root: str, title: str, now: datetime
) -> bytes:
    """Feed of messages.

    Args:
        messages: Newest first.
        root: Address of the folder that holds feed and messages.
        title: Of the feed.
        now: Time of the feed if it has no messages.
    """
    feed = ET.Element("feed", xmlns=ATOM)
    newest = utc_time(messages[0].at_s) if messages else now
    _add(feed, "id", f"{_ID}:{quote(root, safe='')}")
    _add(feed, "title", title)
    _add(feed, "updated", newest.isoformat(timespec="seconds"))
    ET.SubElement(feed, "link", rel="self", type=ATOM_TYPE, href=f"{root}/feed.atom")
    author = ET.SubElement(feed, "author")
    _add(author, "name", title)
    for message in messages:
        _add_entry(feed, message, root)
    ET.indent(feed)
    text: bytes = ET.tostring(feed, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _add_entry(feed: ET.Element, message: StoredMessage, root: str) -> None:
    entry = ET.SubElement(feed, "entry")
    name = quote(message.identifier, safe="")
    at = utc_time(message.at_s).isoformat(timespec="seconds")
    _add(entry, "id", f"{_ID}:{name}")
    _add(entry, "title", f"{message.kind} ({message.status}): {message.title}")
    _add(entry, "updated", at)
    _add(entry, "published", at)
    ET.SubElement(entry, "category", term=message.kind)
    ET.SubElement(entry, "category", term=message.status)
    href = f"{root}/{name}.xml"
    ET.SubElement(entry, "link", rel="alternate", type=CAP_TYPE, href=href)


def _add(parent: ET.Element, name: str, text: str) -> None:
    ET.SubElement(parent, name).text = text


def page_view(
    messages: CapMessages, status: cap.CapStatus, may_edit: bool
) -> dict[str, Any]:
    """What the page shows of the messages.

    Args:
        messages: The messages.
        status: Of those that the page can make now.
        may_edit: Whether the account may make one.
    """
    in_force = messages.in_force(status)
    return {
        "may_edit": may_edit,
        "in_force": in_force and in_force.identifier,
        "messages": [
            {
                "identifier": each.identifier,
                "type": each.kind,
                "status": each.status,
                "title": each.title,
                "who": each.who,
                "at_s": each.at_s,
            }
            for each in messages.newest()
        ],
    }
