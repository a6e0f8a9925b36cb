"""Overlays of the map: who added which file when, and their names to search for.

The journal holds an entry for each overlay that is added or removed; the collection
lies beside it in a file named by its hash, so that a change of the file shows.
"""

import gzip
import hashlib
import logging
import threading
import unicodedata
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from backend_spark.console.audit_log import Journal, JournalEntry
from backend_spark.console.overlay_files import (
    KINDS,
    LABEL,
    MAX_NAME,
    middle,
    read_overlay,
)
from service_runtime.decoding import decode_json
from service_runtime.errors import FieldError
from service_runtime.files import write_atomic

log = logging.getLogger(__name__)

ENTRY: Final = "overlay"
MAX_OVERLAYS: Final = 30
MAX_ENTRIES: Final = 5000
MAX_FOUND: Final = 20


@dataclass(frozen=True)
class Overlay:
    """One overlay of the map.

    Attributes:
        id: Hash of its collection.
        title: As shown in the legend.
        kinds: Kinds of its features.
        features: Number of its features.
        who: Account that added it.
        at_s: Unix time of the addition.
    """

    id: str
    title: str
    kinds: tuple[str, ...]
    features: int
    who: str
    at_s: float


@dataclass(frozen=True)
class FoundPlace:
    """A place whose name was searched for."""

    name: str
    kind: str
    title: str
    longitude: float
    latitude: float


class Overlays:
    """The overlays of a console; several threads may use them.

    Args:
        folder: Of the collections; it is made for the first.
        journal: Records additions and removals.
    """

    def __init__(self, folder: Path, journal: Journal) -> None:
        self._folder = folder
        self._journal = journal
        self._lock = threading.Lock()
        self._names: dict[str, list[tuple[str, FoundPlace]]] = {}

    def all(self) -> list[Overlay]:
        """The overlays that are there, the oldest first."""
        found: dict[str, Overlay] = {}
        for entry in reversed(self._journal.read(ENTRY, limit=MAX_ENTRIES)):
            if entry.body["is_there"]:
                found[entry.subject] = _overlay(entry)
            else:
                found.pop(entry.subject, None)
        return list(found.values())

    def add(self, at_s: float, who: str, title: str, kind: str, raw: bytes) -> Overlay:
        """Check a file, store it, and return the overlay.

        Raises:
            FieldError: File, title, kind or the number of overlays break a rule.
        """
        title = title.strip()
        if not 1 <= len(title) <= MAX_NAME:
            raise FieldError("title", f"1 to {MAX_NAME} characters", title, "")
        collection = read_overlay(raw, kind)
        encoded = msgspec.json.encode(collection)
        digest = hashlib.sha256(encoded).hexdigest()
        found = [
            feature["properties"]["kind"]
            for feature in collection["features"]
            if LABEL not in feature["properties"]
        ]
        body = {
            "is_there": True,
            "title": title,
            "kinds": [each for each in KINDS if each in found],
            "features": len(found),
        }
        with self._lock:
            others = [each for each in self.all() if each.id != digest]
            if len(others) >= MAX_OVERLAYS:
                rule = f"at most {MAX_OVERLAYS} overlays"
                raise FieldError("file", rule, str(len(others)), "remove one first")
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self._path(digest), gzip.compress(encoded, mtime=0))
            self._journal.write(at_s, ENTRY, digest, who, body)
        return next(each for each in self.all() if each.id == digest)

    def remove(self, at_s: float, who: str, overlay: Overlay) -> None:
        """Remove an overlay; the journal keeps that it was there."""
        body = {"is_there": False, "title": overlay.title}
        with self._lock:
            self._journal.write(at_s, ENTRY, overlay.id, who, body)
            self._path(overlay.id).unlink(missing_ok=True)
            self._names.pop(overlay.id, None)

    def find(self, overlay_id: str) -> Overlay | None:
        """The overlay with an id, if it is there."""
        return next((each for each in self.all() if each.id == overlay_id), None)

    def compressed(self, overlay: Overlay) -> bytes | None:
        """The collection as gzip; None if the file is missing or was changed."""
        try:
            packed = self._path(overlay.id).read_bytes()
            digest = hashlib.sha256(gzip.decompress(packed)).hexdigest()
        except (OSError, EOFError, zlib.error) as error:
            log.warning("overlay %s cannot be read: %s", overlay.title, error)
            return None
        if digest != overlay.id:
            log.warning("the file of overlay %s was changed", overlay.title)
            return None
        return packed

    def search(self, text: str) -> list[FoundPlace]:
        """Places whose name contains a text, those that begin with it first."""
        wanted = plain(text)
        if not wanted:
            return []
        found = [
            (name.find(wanted), len(name), place)
            for overlay in self.all()
            for name, place in self._named(overlay)
            if wanted in name
        ]
        found.sort(key=lambda each: each[:2])
        return [place for _, _, place in found[:MAX_FOUND]]

    def _named(self, overlay: Overlay) -> list[tuple[str, FoundPlace]]:
        known = self._names.get(overlay.id)
        if known is None:
            known = self._names[overlay.id] = list(self._read_names(overlay))
        return known

    def _read_names(self, overlay: Overlay) -> Iterator[tuple[str, FoundPlace]]:
        packed = self.compressed(overlay)
        if packed is None:
            return
        collection = decode_json(gzip.decompress(packed), dict[str, Any])
        for feature in collection["features"]:
            columns = feature["properties"]
            if columns["name"] and LABEL not in columns:
                place = middle(feature["geometry"]["coordinates"])
                name, kind = columns["name"], columns["kind"]
                yield plain(name), FoundPlace(name, kind, overlay.title, *place)

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest}.geojson.gz"


def overlay_view(overlays: Overlays) -> list[dict[str, Any]]:
    """The overlays for the page."""
    return [asdict(each) for each in overlays.all()]


def plain(text: str) -> str:
    """A name as it is compared: without width, case and spaces."""
    wide = unicodedata.normalize("NFKC", text).casefold()
    return "".join(wide.split())


def _overlay(entry: JournalEntry) -> Overlay:
    body = entry.body
    kinds, number = tuple(body["kinds"]), body["features"]
    return Overlay(entry.subject, body["title"], kinds, number, entry.who, entry.at_s)
