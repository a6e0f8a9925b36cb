"""The command ``first-boot``: installs a node's settings from its card's FAT partition.

The order of the steps makes a power cut harmless: certificates before the settings
that name them, settings before the mark that they were installed, and only then are
secrets wiped. An interrupted run starts again at the next boot with the same result.
A wrong file never replaces working settings; the report gives the reasons.
"""

import codecs
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

import click
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from edge_agent.cli._options import print_error
from edge_agent.clock import SystemClock
from edge_agent.config import NodeSettings, parse_node_settings
from edge_agent.safe_mode import recover_settings
from service_runtime import lifecycle
from service_runtime.files import mark_for_wipe, wipe_marked, write_atomic
from service_runtime.settings import Problem, SettingsError, parse_toml
from service_runtime.tls import TpmError
from spatial_mqtt.certificates import (
    decode_private_key,
    encode_private_key,
    generate_private_key,
)
from spatial_mqtt.errors import RenewalError

NODE_FILE = "node.toml"
FILE_NAMES = (NODE_FILE, "node.toml.txt")
"""Notepad saves the first under the second name, which Windows shows as the first."""

REPORT_FILE = "node-report.txt"
INSTALLED_MARK = ".node.toml.taken"
"""Beside the settings: the digest of the file that they were installed from."""

CREDENTIALS = Path("/run/credentials")
"""Folder in which systemd passes on keys that only root can read."""

CREDENTIALS_FOLDER = "tls"
"""Folder beside the settings from which systemd takes them."""

REQUEST_SUFFIX = ".csr"
_PEM = b"-----BEGIN "
_OPEN_MODE, _KEY_MODE = 0o644, 0o640


class InstallStatus(Enum):
    """Result of a first boot."""

    NOTHING = "no file"
    TAKEN = "taken"
    REFUSED = "refused"


@dataclass(frozen=True)
class InstallResult:
    """Result of a first boot, with its reasons.

    Attributes:
        result: Whether a file was installed.
        node: Id of the node whose settings are active now; None for none.
        digest: SHA-256 of the file; empty without one.
        problems: Why the file was refused.
        notes: Further notes for a person.
        is_safe: Whether the node runs in safe mode on the refused file.
    """

    result: InstallStatus
    node: str | None
    digest: str = ""
    problems: Sequence[str] = ()
    notes: Sequence[str] = ()
    is_safe: bool = False

    def is_reported(self, previous: bytes) -> bool:
        """Whether the previous report on the card differs in its time alone."""
        return _without_time(previous) == _without_time(format_report(self, ""))


@dataclass(frozen=True)
class CardPaths:
    """Source and target of a first boot.

    Attributes:
        source: Folder on the FAT partition.
        target: Folder of the active settings. Its setgid bit gives a key the group
            that may read it.
    """

    source: Path
    target: Path

    def installed_path(self, path: str) -> Path | None:
        """Path of a file that ``[tls]`` names; None for one outside the target."""
        file = Path(path)
        if CREDENTIALS in file.parents:
            return self.target / CREDENTIALS_FOLDER / file.name
        return file if self.target in file.parents else None


def install_settings(paths: CardPaths) -> InstallResult:
    """Install the card's settings, if they are new and valid.

    Raises:
        OSError: The target cannot be written, or the card cannot be wiped. Either the
            earlier or the new settings are active.
    """
    found = _found(paths.source)
    if found is None:
        return InstallResult(InstallStatus.NOTHING, _active(paths.target))
    raw = found.read_bytes()
    mark = paths.target / INSTALLED_MARK
    digest = hashlib.sha256(raw).hexdigest()
    is_installed = mark.exists() and mark.read_bytes() == digest.encode()
    is_installed = is_installed and _settings(paths.target) is not None
    try:
        text, node = _checked(raw, found.name)
        files = _named_files(paths, node)
    except (TextError, SettingsError) as error:
        active = _active(paths.target)
        is_safe = active is None and _install_for_safe_mode(paths.target, raw)
        problems = tuple(map(str, getattr(error, "problems", (error,))))
        return InstallResult(
            InstallStatus.REFUSED, active, digest, problems, is_safe=is_safe
        )
    key = node.settings.tls.key
    for path, data in files.items():
        _install(
            path, data, is_key=key is not None and path == paths.installed_path(key)
        )
    if not is_installed:
        write_atomic(paths.target / NODE_FILE, text.encode(), _OPEN_MODE)
        write_atomic(mark, digest.encode())
    # Last: a card that cannot be written must not keep the node from measuring.
    problem = _prepare_request(paths, node)
    notes = tuple(filter(None, (problem, *_notes(paths, node, found.name))))
    return InstallResult(InstallStatus.TAKEN, _active(paths.target), digest, (), notes)


def _install_for_safe_mode(target: Path, raw: bytes) -> bool:
    """Install a wrong file where none worked before, if safe mode can use it."""
    try:
        text = _text(raw).encode()
    except TextError:
        return False
    if recover_settings(text) is None:
        return False
    write_atomic(target / NODE_FILE, text, _OPEN_MODE)
    return True


def wipe_key(paths: CardPaths) -> None:
    """Wipe the key from the card, once it is installed.

    This is the last step, after the report is written.

    Raises:
        OSError: The card cannot be written.
    """
    active = _settings(paths.target)
    key = None if active is None else active.settings.tls.key
    kept = None if key is None else paths.installed_path(key)
    if kept is not None and _is_same(paths.source / kept.name, kept):
        mark_for_wipe(paths.source / kept.name)
    wipe_marked(paths.source)


def format_report(result: InstallResult, when: str) -> bytes:
    """Format the report as text that Windows' editor shows."""
    return encode_text(list(_report_lines(result, when)))


def _without_time(report: bytes) -> list[bytes]:
    return [line for line in report.splitlines() if not line.startswith(b"written ")]


def _found(source: Path) -> Path | None:
    return next((source / n for n in FILE_NAMES if (source / n).is_file()), None)


def _checked(raw: bytes, name: str) -> tuple[str, NodeSettings]:
    text = _text(raw)
    return text, parse_node_settings(parse_toml(text, name))


def _text(raw: bytes) -> str:
    return decode_text(raw).replace("\r\n", "\n").replace("\r", "\n")


def _settings(target: Path) -> NodeSettings | None:
    """The active settings; None without valid ones."""
    try:
        return _checked((target / NODE_FILE).read_bytes(), NODE_FILE)[1]
    except (OSError, TextError, SettingsError):
        return None


def _active(target: Path) -> str | None:
    """Id in the active settings."""
    node = _settings(target)
    return None if node is None else node.settings.node.id


def _is_same(one: Path, other: Path) -> bool:
    both = one.is_file() and other.is_file()
    return both and one.read_bytes() == other.read_bytes()


def _named_files(place: CardPaths, node: NodeSettings) -> dict[Path, bytes]:
    """Files of the card that the settings name, by their target path.

    Raises:
        SettingsError: One is no PEM file, or its path is outside the target.
    """
    files, problems = {}, []
    for field, path in _tls_and_key_files(node):
        found = place.source / Path(path).name
        if not found.is_file():
            continue
        data, kept = found.read_bytes(), place.installed_path(path)
        if _PEM not in data:
            rule = "must be a PEM file"
            problems.append(Problem(found.name, rule, data[:20], "copy it anew"))
        elif field == "tls.key" and node.settings.tls.tpm:
            rule, remedy = "must not be on the card, with tls.tpm", "delete it"
            problems.append(Problem(found.name, rule, "a key", remedy))
        elif kept is None:
            rule = f"must be in {place.target} or {CREDENTIALS}"
            rule += ", for the card's file to be used"
            problems.append(Problem(field, rule, path))
        else:
            files[kept] = data
    if problems:
        raise SettingsError(problems)
    return files


def _tls_and_key_files(node: NodeSettings) -> Iterator[tuple[str, str]]:
    """Key and path of each certificate and public key of the settings."""
    settings = node.settings
    for key, path in vars(settings.tls).items():
        if isinstance(path, str):
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


def _prepare_request(place: CardPaths, node: NodeSettings) -> str | None:
    """Make a key where there is none, and its signing request on the card.

    The key never leaves the node; the office signs the request. Returns why there is
    none: without a TPM the node measures, and the next start tries again.
    """
    tls, id_ = node.settings.tls, node.settings.node.id
    request = place.source / f"{id_}{REQUEST_SUFFIX}"
    kept, certificate = (_kept_path(place, path) for path in (tls.key, tls.certificate))
    if kept is None or certificate is None:
        return None
    if certificate.exists():
        request.unlink(missing_ok=True)
        return None
    try:
        if not kept.exists():
            pem = encode_private_key(generate_private_key(is_in_tpm=tls.tpm))
            _install(kept, pem, is_key=True)
            request.unlink(missing_ok=True)
        made = None if request.exists() else _request(id_, kept.read_bytes())
    except TpmError as error:
        return str(error)
    if made is not None:
        write_atomic(request, made)
    return None


def _kept_path(place: CardPaths, path: str | None) -> Path | None:
    return None if path is None else place.installed_path(path)


def _request(id_: str, key: bytes) -> bytes | None:
    """A signing request for a node's key, as PEM; None for a key of another kind.

    Raises:
        TpmError: The key is in a TPM, which cannot be used.
    """
    try:
        loaded = decode_private_key(key)
    except RenewalError:
        return None
    subject = x509.Name([
        x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "node"),
        x509.NameAttribute(NameOID.COMMON_NAME, id_),
    ])
    builder = x509.CertificateSigningRequestBuilder(subject)
    return builder.sign(loaded, hashes.SHA256()).public_bytes(
        serialization.Encoding.PEM
    )


def _notes(place: CardPaths, node: NodeSettings, name: str) -> Iterator[str]:
    tls, id_ = node.settings.tls, node.settings.node.id
    if name != NODE_FILE:
        yield f"{name} was read as {NODE_FILE}; Windows hides the end of its name"
    if (place.source / f"{id_}{REQUEST_SUFFIX}").exists() and tls.certificate:
        yield (
            f"{id_}{REQUEST_SUFFIX} is the request for this node's certificate: have "
            f"the office sign it (gateway-daemon ca issue node {id_} --request), and "
            f"put the certificate on this card as {Path(tls.certificate).name}"
        )
        return
    for key in ("certificate", "key"):
        path = getattr(tls, key)
        kept = None if path is None else place.installed_path(path) or Path(path)
        if kept is not None and not kept.exists():
            yield f"tls.{key} needs {kept}, which is not there yet"


def _report_lines(outcome: InstallResult, when: str) -> Iterator[str]:
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


class TextError(ValueError):
    """A file is in none of the encodings of office programs."""


def decode_text(raw: bytes) -> str:
    """Decode a text file of an office program: UTF-8, UTF-16 or Shift JIS.

    Raises:
        TextError: It is in none of these.
    """
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return raw.decode("utf-16", errors="replace")
    for encoding in ("utf-8-sig", "cp932"):
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise TextError(
        "the file must be text in UTF-8, UTF-16 or Shift JIS (cp932); save it as UTF-8"
    )


def encode_text(lines: Sequence[str]) -> bytes:
    """Encode lines for every editor: UTF-8 with byte order mark, CR LF."""
    return ("\r\n".join(lines) + "\r\n").encode("utf-8-sig")


_STATUS = {
    InstallStatus.NOTHING: 0,
    InstallStatus.TAKEN: 0,
    InstallStatus.REFUSED: lifecycle.EXIT_CONFIG,
}
_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command("first-boot")
@click.option(
    "--from", "source", required=True, type=_FOLDER, help="Folder on the FAT partition."
)
@click.option(
    "--to", "target", required=True, type=_FOLDER, help="Folder of the active settings."
)
def first_boot(source: Path, target: Path) -> None:
    """Install node.toml from the card, if it is new and valid; write a report.

    Certificates that [tls] names are installed as well, and the key is wiped from the
    card. Runs at every start before the agent, and is quick when nothing is new.
    The status is 0, or 78 when the file was refused: then the earlier settings stay
    active.
    """
    try:
        outcome = _install_and_report(CardPaths(source, target))
    except OSError as error:
        raise SystemExit(print_error(error)) from error
    click.echo(f"{source}: {outcome.result.value}; active: {outcome.node or 'none'}")
    for problem in outcome.problems:
        click.echo(problem, err=True)
    raise SystemExit(_STATUS[outcome.result])


def _install_and_report(place: CardPaths) -> InstallResult:
    place.target.mkdir(parents=True, exist_ok=True)
    outcome = install_settings(place)
    path = place.source / REPORT_FILE
    previous = path.read_bytes() if path.exists() else b""
    if place.source.is_dir() and not outcome.is_reported(previous):
        write_atomic(path, format_report(outcome, _now()))
    wipe_key(place)
    return outcome


def _now() -> str:
    clock = SystemClock()
    now = datetime.fromtimestamp(clock.wall_s(), UTC)
    note = "" if clock.is_synchronised() else " (the clock was not set yet)"
    return f"{now:%Y-%m-%d %H:%M} UTC{note}"
