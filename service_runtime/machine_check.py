"""Machine check: what a program needs on this machine, and what is missing of it.

Each check covers one subject and returns findings: what is in order, what should be
looked at, and what must be repaired, with the remedy. Nothing is changed, and no MQTT
session is opened: with a daemon's certificate it would end the daemon's own session.

Root also checks what the user of a service may read: another user cannot see the rights
of all folders, and checks with its own.
"""

import ctypes
import json
import os
import pwd
import re
import shutil
import socket
import ssl
import stat
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from service_runtime.errors import TlsFileError
from service_runtime.settings import NOT_GIVEN, Problem
from service_runtime.tls import (
    Endpoint,
    TlsFiles,
    describe_tls_error,
    find_certificates,
    make_ssl_context,
    read_certificate,
)

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

DISTRIBUTION: Final = "yamamori"
PROGRAMS_TABLE: Final = Path(__file__).with_name("programs.txt")
SYSTEMD_RUNS: Final = Path("/run/systemd/system")
OF_UNITS: Final = frozenset({"systemd", "nftables"})
"""Packages that only our units call."""

STATE_FOLDER: Final = Path("/var/lib/yamamori")
"""A unit's folder is made there at its start, by the name of its settings' section."""

LEAST_JAVA: Final = 17
LEAST_FREE_BYTES: Final = 100_000_000
RENEWAL_WARNING: Final = timedelta(days=30)
CONNECT_TIMEOUT_S: Final = 5.0
ALERT_WAIT_S: Final = 1.0
"""With TLS 1.3 a server refuses our certificate after the handshake."""

MOST_FILES: Final = 100_000
"""Files of a data folder that are looked at."""

TIME_ERROR: Final = 5
"""Result of adjtimex(2): nothing has set the clock since the machine started."""


class FindingState(StrEnum):
    """Result of a check."""

    OK = "ok"
    NOTE = "note"
    MEND = "mend"


@dataclass(frozen=True)
class MachineFinding:
    """What a check found.

    Attributes:
        state: Severity.
        text: A sentence for the operator; of a problem with rule, value and remedy.
    """

    state: FindingState
    text: str

    def __str__(self) -> str:
        """A line of the report."""
        mark = self.state.upper() if self.state is FindingState.MEND else self.state
        return f"{mark:<4}  {self.text}"


def ok(text: str) -> MachineFinding:
    """Something is well."""
    return MachineFinding(FindingState.OK, text)


def finding(subject: str, rule: str, value: object, remedy: str) -> MachineFinding:
    """Something must be mended: subject, rule, value and remedy in one sentence."""
    return MachineFinding(
        FindingState.MEND, str(Problem(subject, f"must {rule}", value, remedy))
    )


def format_findings(findings: Iterable[MachineFinding], *, as_json: bool) -> str:
    """The report: a line for each finding, or JSON for programs."""
    if as_json:
        rows = [{"state": each.state, "text": each.text} for each in findings]
        return json.dumps(rows, ensure_ascii=False)
    return "\n".join(map(str, findings))


def texts_of(findings: Iterable[MachineFinding], state: FindingState) -> list[str]:
    """Sentences of the findings of one state."""
    return [each.text for each in findings if each.state is state]


def are_well(findings: Iterable[MachineFinding]) -> bool:
    """Whether nothing must be mended."""
    return all(each.state is not FindingState.MEND for each in findings)


@dataclass(frozen=True)
class MachineNeeds:
    """What a program needs on its machine.

    Attributes:
        program: Its name in the command line of its processes.
        role: Extra with its libraries, and its use in `PROGRAMS_TABLE`.
        tls: Files of its links.
        brokers: Keys and URLs of the brokers that it connects to.
        listens: Keys, hosts and ports on which it listens.
        data: Key of its data folder, and the folder; None without one.
        least_free_bytes: Free space on the disk of that folder.
        without: Packages that this machine does not need.
        has_java: Whether it starts Java.
        uid: User of its service, where root checks for it; None for other settings.
    """

    program: str
    role: str
    tls: TlsFiles
    brokers: Sequence[tuple[str, str]]
    listens: Sequence[tuple[str, str, int]] = ()
    data: tuple[str, Path] | None = None
    least_free_bytes: int = LEAST_FREE_BYTES
    without: tuple[str, ...] = ()
    has_java: bool = False
    uid: int | None = None


def check_machine(
    needs: MachineNeeds, environ: Mapping[str, str], now: datetime
) -> Iterator[MachineFinding]:
    """Check everything that a program needs."""
    yield from check_libraries(needs.role)
    yield from check_programs(needs.role, environ["PATH"], without=needs.without)
    if needs.has_java:
        yield from check_java(environ)
    yield from check_clock(is_synchronised=is_clock_synchronised())
    if needs.data is not None:
        setting, folder = needs.data
        yield from check_data_folder(setting, folder, uid=needs.uid)
        yield from check_disk(folder, needs.least_free_bytes)
    for setting, host, port in needs.listens:
        yield from check_port(setting, host, port, needs.program)
    yield from check_tls_files(needs.tls, now)
    for setting, url in needs.brokers:
        yield from check_broker(setting, url, needs.tls, now)


def check_programs(
    role: str, path: str, *, without: Collection[str] = ()
) -> Iterator[MachineFinding]:
    """Check that the programs of a role are installed.

    Args:
        role: A use in `PROGRAMS_TABLE`, such as ``backend``.
        path: Folders to search, as in ``PATH``.
        without: Packages that this machine does not need.
    """
    if not SYSTEMD_RUNS.is_dir():
        text = "systemd does not run here: another service manager must start us"
        yield MachineFinding(FindingState.NOTE, text)
    found = []
    for line in PROGRAMS_TABLE.read_text(encoding="utf-8").splitlines():
        package, uses, *programs = line.split() if line[:1] != "#" else ("", "")
        if role not in uses.split(",") or package in without:
            continue
        if package in OF_UNITS and not SYSTEMD_RUNS.is_dir():
            continue
        missing = [name for name in programs if shutil.which(name, path=path) is None]
        if missing:
            remedy = f"apt install {package}"
            yield finding(", ".join(missing), "be installed", NOT_GIVEN, remedy)
        found += [name for name in programs if name not in missing]
    if found:
        yield ok(f"programs: {', '.join(found)}")


def check_libraries(extra: str) -> Iterator[MachineFinding]:
    """Check that the libraries of an extra are installed, in a version new enough."""
    remedy = f'pip install "{DISTRIBUTION}[{extra}]"'
    count = 0
    for requirement in metadata.requires(DISTRIBUTION) or ():
        wanted, _, marker = requirement.partition(";")
        if (marker and f'extra == "{extra}"' not in marker) or "machine" in marker:
            continue
        name = re.split(r"[^\w.-]", wanted.strip(), maxsplit=1)[0]
        least = re.search(r">=([\d.]+)", wanted)
        try:
            has = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield finding(f"library {name}", "be installed", NOT_GIVEN, remedy)
            continue
        if least is not None and _numbers(has) < _numbers(least[1]):
            yield finding(f"library {name}", f"be {least[1]} or newer", has, remedy)
            continue
        count += 1
    yield ok(f"libraries: {count} of {DISTRIBUTION}[{extra}]")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.split("+", maxsplit=1)[0])[:3]))


def check_java(environ: Mapping[str, str]) -> Iterator[MachineFinding]:
    """Check the Java that Spark would start."""
    home = environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java", path=environ["PATH"])
    rule, remedy = f"be {LEAST_JAVA} or newer", "apt install default-jre-headless"
    if java is None or not os.access(java, os.X_OK):
        remedy = f"{remedy}, or correct JAVA_HOME" if home else remedy
        yield finding("java", rule, java or "none", remedy)
        return
    done = subprocess.run(  # noqa: S603 - the program that Spark would start
        [java, "-version"], capture_output=True, text=True, check=False
    )
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    if found is None or int(found[1]) < LEAST_JAVA:
        got = done.stderr.strip().partition("\n")[0] or f"status {done.returncode}"
        yield finding(f"java ({java})", rule, got, remedy)
    else:
        yield ok(f"java {found[1]} ({java})")


def is_clock_synchronised() -> bool:
    """Whether a time server has set the clock, by any daemon that sets the kernel's.

    False where a sandbox forbids the call.
    """
    state = ctypes.create_string_buffer(256)  # struct timex; all zero changes nothing
    return 0 <= ctypes.CDLL(None).adjtimex(state) < TIME_ERROR  # type: ignore[no-any-return]


def check_clock(*, is_synchronised: bool) -> Iterator[MachineFinding]:
    """Check that a time server has set the clock."""
    if is_synchronised:
        yield ok("clock: set by a time server")
    else:
        remedy = "systemctl enable --now systemd-timesyncd, and see timedatectl"
        yield finding("clock", "be set by a time server", NOT_GIVEN, remedy)


def check_disk(
    folder: Path, least_bytes: int = LEAST_FREE_BYTES
) -> Iterator[MachineFinding]:
    """Check the free space of the disk of a folder, which need not exist yet."""
    there = folder.absolute()
    while not os.path.exists(there):  # noqa: PTH110 - false also where we may not look
        there = there.parent
    free = os.statvfs(there)
    free_bytes = free.f_bavail * free.f_frsize
    if free_bytes < least_bytes:
        rule = f"have {least_bytes / 1e6:.0f} MB free"
        remedy = f"delete files, or move {folder} to a larger disk"
        yield finding(f"disk of {folder}", rule, f"{free_bytes / 1e6:.0f} MB", remedy)
    elif free.f_files and not free.f_favail:
        remedy = "delete small files: `df -i` shows the number"
        yield finding(f"disk of {folder}", "have free inodes", 0, remedy)
    else:
        yield ok(f"disk of {folder}: {free_bytes / 1e9:.1f} GB free")


def check_data_folder(
    setting: str, folder: Path, files: str = "", *, uid: int | None = None
) -> Iterator[MachineFinding]:
    """Check that a program can write its data folder and its files there.

    If root runs the check for an unknown user, that is taken to be the owner of the
    folder: files of others were made by a command that was run as root.

    Args:
        setting: Key of the folder.
        folder: The folder; it need not exist yet.
        files: Pattern of the program's files; empty if all below the folder are.
        uid: User of the program, if root checks for it.
    """
    try:
        if folder.exists():
            yield _check_owners(setting, folder, files, uid)
        else:
            yield _check_missing_folder(setting, folder, uid)
    except PermissionError as error:
        rule, remedy = "be in folders that this user may search", "run as the daemon's"
        yield finding(setting, rule, error.filename, remedy)


def _check_owners(
    setting: str, folder: Path, files: str, service_uid: int | None
) -> MachineFinding:
    if not folder.is_dir():
        return finding(setting, "be a folder", str(folder), "remove or rename the file")
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        rule = "be on a disk that can be written"
        remedy = "see `dmesg`: a failing card or disk becomes read-only; replace it"
        return finding(setting, rule, str(folder), remedy)
    uid = service_uid
    if uid is None:
        uid = folder.stat().st_uid if os.geteuid() == 0 else os.geteuid()
    paths = islice(_iterate_files(folder, files), MOST_FILES)
    foreign = next((path for path in paths if not _is_of(path, uid)), None)
    if foreign is None:
        return ok(f"{setting}: {folder} is writable")
    remedy = f"chown -R --reference={folder} {folder / files}"
    if foreign == folder and service_uid is not None:
        remedy = f"chown -R {uid} {folder}"
    elif foreign == folder:
        remedy = "run as the daemon's user, or give the folder to this one"
    subject, rule = f"{setting}: {foreign}", f"be writable by user {uid}"
    return finding(subject, rule, f"user {foreign.lstat().st_uid}", remedy)


def _check_missing_folder(
    setting: str, folder: Path, uid: int | None
) -> MachineFinding:
    parent = next(each for each in folder.absolute().parents if each.exists())
    if uid is None:
        is_made = os.access(parent, os.W_OK | os.X_OK)
        remedy = f"make it with its owner, or make {parent} writable"
    else:
        by_systemd = STATE_FOLDER / setting.partition(".")[0]
        is_made = folder.is_relative_to(by_systemd) or parent.stat().st_uid == uid
        remedy = f"install -d -o {uid} {folder}"
    if is_made:
        return ok(f"{setting}: {folder} will be made at the first start")
    return finding(setting, "be a folder that exists", str(folder), remedy)


def _iterate_files(folder: Path, pattern: str) -> Iterator[Path]:
    yield folder
    if pattern:
        yield from folder.glob(pattern)
        return
    for at, folders, files in os.walk(folder):
        yield from (Path(at, name) for name in (*folders, *files))


def _is_of(path: Path, uid: int) -> bool:
    """Whether a user can write a file; one that has vanished meanwhile counts."""
    try:
        if os.geteuid() != 0:
            return os.access(path, os.W_OK, follow_symlinks=False)
        return path.lstat().st_uid == uid
    except FileNotFoundError:
        return True


def check_port(
    setting: str, host: str, port: int, program: str
) -> Iterator[MachineFinding]:
    """Check that an address is free, or is in use by our own program.

    Args:
        setting: Key of the address.
        host: Address to listen on.
        port: TCP port.
        program: Name of our program in the command line of its process.
    """
    listen = f"{host}:{port}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        pid, command = _find_listener(port)
        if program in command:
            yield ok(f"{setting}: {listen} is in use by {program} (process {pid})")
        elif pid:
            remedy = f"stop it, or set {setting} to another port"
            value = f"in use by {Path(command.split()[0]).name} (process {pid})"
            yield finding(f"{setting} {listen}", "be free", value, remedy)
        else:
            remedy = f"see `ss -ltnp` as root, or set {setting} to another port"
            yield finding(f"{setting} {listen}", "be free", str(error), remedy)
    else:
        yield ok(f"{setting}: {listen} is free")


def _find_listener(port: int) -> tuple[int, str]:
    """Process and command line that listen on a port; 0 if this user may not see it."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text("ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for handle in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(handle.readlink()) in inodes:
                words = handle.parents[1].joinpath("cmdline").read_bytes()
                return int(handle.parts[2]), words.replace(b"\0", b" ").decode()
        except OSError:
            continue  # ended meanwhile, or of another user
    return 0, ""


def check_tls_files(files: TlsFiles, now: datetime) -> Iterator[MachineFinding]:
    """Check that the files of TLS links fit together, and how long they are valid."""
    try:
        make_ssl_context(files)
        found = find_certificates(files, now)
        certificate, key = found.usable[0]
        if certificate is None:
            return
        used = read_certificate(certificate)
    except TlsFileError as error:
        yield finding(error.field, "be usable", error.path, error.reason)
        return
    for damaged in found.errors:
        yield finding(damaged.field, "be usable", damaged.path, damaged.reason)
    yield _check_validity(certificate, used, now)
    secret = Path(key or certificate)
    if secret.stat().st_mode & stat.S_IROTH:
        remedy = f"chmod o= {secret}, and issue a new one if others use this machine"
        yield finding(f"key {secret}", "be secret", "readable by all users", remedy)


def _check_validity(
    path: str, certificate: "Certificate", now: datetime
) -> MachineFinding:
    subject = f"certificate {path}"
    begins, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if begins > now:
        remedy = "set the clock, here or of its signer, which then issues a new one"
        return finding(subject, "be valid", f"begins {begins:%Y-%m-%d}", remedy)
    if end <= now:
        remedy = "issue a new one, and see why it was not renewed"
        return finding(subject, "be valid", f"end {end:%Y-%m-%d}", remedy)
    if end < now + RENEWAL_WARNING:
        rule = f"be valid for {RENEWAL_WARNING.days} days"
        remedy = "see why `spatial-mqtt renew` did not renew it"
        return finding(subject, rule, f"end {end:%Y-%m-%d}", remedy)
    return ok(f"{subject}: valid until {end:%Y-%m-%d}")


def check_broker(
    setting: str, url: str, files: TlsFiles, now: datetime
) -> Iterator[MachineFinding]:
    """Check that a broker accepts connections, with TLS also the certificates."""
    end = None
    endpoint = Endpoint.parse(url)
    at = (endpoint.host, endpoint.port)
    try:
        with socket.create_connection(at, CONNECT_TIMEOUT_S) as link:
            if endpoint.tls:
                end = _shake_hands(link, endpoint.host, files)
    except TlsFileError:
        return  # check_tls_files reports it
    except (socket.gaierror, UnicodeError) as error:  # the latter for an empty label
        remedy = "correct the name, or see /etc/resolv.conf"
        yield finding(
            setting, "be a name that resolves", endpoint.host, f"{error}; {remedy}"
        )
    except ssl.SSLError as error:
        yield finding(setting, "accept our TLS link", url, describe_tls_error(error))
    except OSError as error:
        remedy = f"{error}; start the broker there, and see the firewall between"
        yield finding(setting, "accept connections", url, remedy)
    else:
        yield ok(f"{setting}: {url} accepts connections")
    if end is not None and end < now + RENEWAL_WARNING:
        rule = f"be valid for {RENEWAL_WARNING.days} days"
        remedy = "issue it again at the office: nothing else renews it"
        subject = f"{setting}: certificate of {url}"
        yield finding(subject, rule, f"end {end:%Y-%m-%d}", remedy)


def _shake_hands(link: socket.socket, host: str, files: TlsFiles) -> datetime:
    """Make the TLS handshake; return the end of the broker's certificate."""
    with make_ssl_context(files).wrap_socket(link, server_hostname=host) as secured:
        peer = secured.getpeercert() or {}
        secured.settimeout(ALERT_WAIT_S)
        with suppress(TimeoutError):  # it waits for our CONNECT
            secured.recv(1)
    end_s = ssl.cert_time_to_seconds(str(peer["notAfter"]))
    return datetime.fromtimestamp(end_s, UTC)


SETTINGS_FOLDER: Final = Path("/etc/yamamori")
USER: Final = "yamamori"
UNITS: Final = Path("/etc/systemd/system")
CREDENTIALS: Final = Path("/run/credentials")


@dataclass(frozen=True)
class ServiceUser:
    """The user of a service.

    Attributes:
        uid: Its number.
        gids: Its groups.
        units: Folder of units, where drop-ins change them.
    """

    uid: int
    gids: tuple[int, ...] = ()
    units: Path = UNITS

    def check_tls(self, files: TlsFiles) -> Iterator[MachineFinding]:
        """Check that the service may read its TLS files; nothing if it may."""
        for key in ("ca", "certificate", "key", "renewed"):
            yield from self.check_file(f"tls.{key}", getattr(files, key))

    def check_file(self, setting: str, given: str | None) -> Iterator[MachineFinding]:
        """Check that the service may read a file; nothing if it may, or without one."""
        if given is None:
            return
        path = Path(given).absolute()
        if path.is_relative_to(CREDENTIALS):
            yield from self._check_credential(setting, path)
        elif (obstacle := self.find_obstacle(path)) is not None:
            remedy = (
                f"{obstacle} forbids it: use a file in {SETTINGS_FOLDER} (user "
                f"{self.uid}, mode 0600, or group {USER}, mode 0640), or "
                "LoadCredential= (docs/how-to/systemd.md)"
            )
            rule = f"be readable by the service (user {self.uid})"
            yield finding(setting, rule, given, remedy)

    def find_obstacle(self, path: Path) -> Path | None:
        """The first folder or file on the way that the user may not use."""
        for each in (*reversed(path.parents), path):
            if not each.exists():
                return None  # not there yet
            right = stat.S_IXOTH if each.is_dir() else stat.S_IROTH
            if not self._class_bits(each) & right:
                return each
        return None

    def _class_bits(self, path: Path) -> int:
        """Rights of the user, as those of others are written."""
        status = path.stat()
        if status.st_uid == self.uid:
            return status.st_mode >> 6
        return status.st_mode >> 3 if status.st_gid in self.gids else status.st_mode

    def _check_credential(self, setting: str, path: Path) -> Iterator[MachineFinding]:
        unit = path.relative_to(CREDENTIALS).parts[0]
        drop_ins = read_drop_ins(self.units / f"{unit}.d")
        is_named = re.search(rf"Credential\w*={re.escape(path.name)}\b", drop_ins)
        if not is_named and not path.exists():
            remedy = f"add LoadCredential={path.name}:... (systemctl edit {unit})"
            yield finding(setting, "be a credential of the service", str(path), remedy)


def read_drop_ins(folder: Path) -> str:
    """Text of the files that change a unit."""
    return "\n".join(each.read_text("utf-8") for each in folder.glob("*.conf"))


def find_user(name: str) -> ServiceUser | None:
    """A user of this machine; None if there is none, or root does not check."""
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        return None
    groups = tuple(os.getgrouplist(name, user.pw_gid))
    return ServiceUser(user.pw_uid, groups) if os.geteuid() == 0 else None


def find_service_user(config: Path, name: str = USER) -> ServiceUser | None:
    """The user of the service that reads these settings; None for other settings.

    Args:
        config: The settings file.
        name: Its user. The units of other users than `USER` add the group of that one.
    """
    if config.absolute().parent != SETTINGS_FOLDER:
        return None
    user, daemons = find_user(name), find_user(USER)
    if user is None or daemons is None:
        return None
    return replace(user, gids=(*user.gids, *daemons.gids))
