"""Takes a node's settings from the card's FAT partition, which any laptop can write.

The order of the steps makes a power cut harmless: certificates before the settings
that name them, settings before the mark that they were taken, and only then are
secrets wiped. Whoever is cut off begins again at the next start and comes to the
same end. What is wrong never replaces what works; the report says why.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from edge_agent.commissioning.fleet import TextError, decode, encode
from edge_agent.config import NodeSettings, from_table
from edge_agent.safe_mode import salvage
from service_runtime.files import fsync_folder, write_atomic
from service_runtime.settings import Problem, SettingsError, parse
from service_runtime.tls import TlsFiles

NODE_FILE = "node.toml"
NAMES = (NODE_FILE, "node.toml.txt")
"""The second is what Notepad makes of the first, out of sight."""

REPORT = "node-report.txt"
TAKEN = ".node.toml.taken"
"""Beside the settings: the digest of the file they were taken from."""

CREDENTIALS = Path("/run/credentials")
"""Where systemd hands keys on that only root can read."""

KEPT_FOR_SYSTEMD = "tls"
"""Folder beside the settings that it takes them from."""

WIPE = ".wipe"
_PEM = b"-----BEGIN "
_OPEN_MODE, _KEY_MODE = 0o644, 0o640


class Result(Enum):
    """What came of it."""

    NOTHING = "no file"
    TAKEN = "taken"
    REFUSED = "refused"


@dataclass(frozen=True)
class Outcome:
    """What came of a look at the card.

    Attributes:
        result: In a word.
        node: Id of the node whose settings are active now; None for none.
        digest: Of the file; empty without one.
        problems: Why the file was refused.
        notes: What else a person should know.
        is_safe: Whether the node runs on what is right in the refused file.
    """

    result: Result
    node: str | None
    digest: str = ""
    problems: Sequence[str] = ()
    notes: Sequence[str] = ()
    is_safe: bool = False

    def is_told(self, told: bytes) -> bool:
        """Whether a report on the card says so already."""
        words = f"RESULT: {self.result.value.upper()}", self.digest
        return all(word.encode() in told for word in words)


@dataclass(frozen=True)
class Place:
    """Where from and where to.

    Attributes:
        source: Folder on the FAT partition.
        target: Folder of the active settings. What its group may read is up to the
            folder: a key takes the group that its setgid bit gives.
    """

    source: Path
    target: Path

    def of(self, path: str) -> Path | None:
        """Where a file that ``[tls]`` names is kept; None for one elsewhere."""
        named = Path(path)
        if CREDENTIALS in named.parents:
            return self.target / KEPT_FOR_SYSTEMD / named.name
        return named if self.target in named.parents else None


def take(place: Place) -> Outcome:
    """Take the card's settings, if they are new and right.

    Raises:
        OSError: The target cannot be written, or the card cannot be wiped. What was
            active is active still, or the new settings are.
    """
    found = _found(place.source)
    if found is None:
        return Outcome(Result.NOTHING, _active(place.target))
    raw = found.read_bytes()
    mark = place.target / TAKEN
    digest = hashlib.sha256(raw).hexdigest()
    is_marked = mark.exists() and mark.read_text() == digest
    is_taken = is_marked and _settings(place.target) is not None
    try:
        text, node = _checked(raw)
        files = _named_files(place, node)
    except (TextError, SettingsError) as error:
        active = _active(place.target)
        is_safe = active is None and _offer_for_safe_mode(place.target, raw)
        problems = tuple(map(str, getattr(error, "problems", (error,))))
        return Outcome(Result.REFUSED, active, digest, problems, is_safe=is_safe)
    key = node.settings.tls.key
    for path, data in files.items():
        _install(path, data, is_key=key is not None and path == place.of(key))
    if not is_taken:
        write_atomic(place.target / NODE_FILE, text.encode(), _OPEN_MODE)
        write_atomic(mark, digest.encode())
    notes = tuple(_notes(place, node.settings.tls, found.name))
    return Outcome(Result.TAKEN, _active(place.target), digest, (), notes)


def _offer_for_safe_mode(target: Path, raw: bytes) -> bool:
    """Where nothing worked before, let the node say what is wrong, if it can."""
    try:
        text = _text(raw).encode()
    except TextError:
        return False
    if salvage(text) is None:
        return False
    write_atomic(target / NODE_FILE, text, _OPEN_MODE)
    return True


def wipe(place: Place) -> None:
    """Wipe the key from the card, once it is installed.

    Call it when the report is written: it is the last step.

    Raises:
        OSError: The card cannot be written.
    """
    active = _settings(place.target)
    key = None if active is None else active.settings.tls.key
    kept = None if key is None else place.of(key)
    if kept is not None and _is_same(place.source / kept.name, kept):
        # Under another name first: a key that is half wiped is no key.
        (place.source / kept.name).rename(place.source / (kept.name + WIPE))
    for left in place.source.glob(f"*{WIPE}"):
        with left.open("r+b") as file:
            file.write(bytes(left.stat().st_size))
            file.flush()
            os.fsync(file.fileno())
        left.unlink()
        fsync_folder(place.source)


def report(outcome: Outcome, when: str) -> bytes:
    """The report as Windows' editor shows it."""
    return encode(list(_report_lines(outcome, when)))


def _found(source: Path) -> Path | None:
    return next((source / n for n in NAMES if (source / n).is_file()), None)


def _checked(raw: bytes) -> tuple[str, NodeSettings]:
    text = _text(raw)
    return text, from_table(parse(text))


def _text(raw: bytes) -> str:
    return decode(raw).replace("\r\n", "\n").replace("\r", "\n")


def _settings(target: Path) -> NodeSettings | None:
    """The active settings; None when there are none that work."""
    try:
        return _checked((target / NODE_FILE).read_bytes())[1]
    except (OSError, TextError, SettingsError):
        return None


def _active(target: Path) -> str | None:
    """Id in the active settings."""
    node = _settings(target)
    return None if node is None else node.settings.node.id


def _is_same(one: Path, other: Path) -> bool:
    both = one.is_file() and other.is_file()
    return both and one.read_bytes() == other.read_bytes()


def _named_files(place: Place, node: NodeSettings) -> dict[Path, bytes]:
    """Files of the card that the settings name, by where they belong.

    Raises:
        SettingsError: One is no PEM file, or belongs elsewhere.
    """
    files, problems = {}, []
    for field, path in _names(node):
        found = place.source / Path(path).name
        if not found.is_file():
            continue
        data, kept = found.read_bytes(), place.of(path)
        if _PEM not in data:
            rule = "must be a PEM file"
            problems.append(Problem(found.name, rule, data[:20], "copy it anew"))
        elif kept is None:
            rule = f"must be in {place.target} or {CREDENTIALS}"
            rule += ", for the card's file to be used"
            problems.append(Problem(field, rule, path))
        else:
            files[kept] = data
    if problems:
        raise SettingsError(problems)
    return files


def _names(node: NodeSettings) -> Iterator[tuple[str, str]]:
    """Certificates, and the public keys of who may speak to the node."""
    settings = node.settings
    for key, path in vars(settings.tls).items():
        if path is not None:
            yield f"tls.{key}", path
    for path in settings.notices.keys:
        yield "notices.keys", path
    for path in settings.update.keys:
        yield "update.keys", path


def _install(path: Path, data: bytes, *, is_key: bool) -> None:
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, data, _KEY_MODE if is_key else _OPEN_MODE)


def _notes(place: Place, tls: TlsFiles, name: str) -> Iterator[str]:
    if name != NODE_FILE:
        yield f"{name} was read as {NODE_FILE}; Windows hides the end of its name"
    for key in ("certificate", "key"):
        path = getattr(tls, key)
        kept = None if path is None else place.of(path) or Path(path)
        if kept is not None and not kept.exists():
            yield f"tls.{key} needs {kept}, which is not there yet"


def _report_lines(outcome: Outcome, when: str) -> Iterator[str]:
    yield f"Yamamori: report on {NODE_FILE}"
    yield f"written {when}"
    yield ""
    yield f"RESULT: {outcome.result.value.upper()}"
    yield f"file: {outcome.digest or 'none'}"
    idle = "none: the node does not measure"
    if outcome.is_safe:
        idle = "safe mode: only what is right in this file"
    yield f"active now: {outcome.node or idle}"
    for note in outcome.notes:
        yield f"note: {note}"
    if outcome.problems:
        yield ""
        yield f"{len(outcome.problems)} to correct:"
        yield from (f" {n}. {p}" for n, p in enumerate(outcome.problems, start=1))
        yield ""
        yield f"Correct {NODE_FILE} on this card with any text editor, put the card"
        yield "back and switch the node on. The settings from before are not touched."
