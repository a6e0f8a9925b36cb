"""Copies a gateway's settings from the card's FAT partition.

``gateway.toml`` and ``manager.toml`` are validated first, so that an invalid file never
replaces a valid one, and so are the files of the folder ``firewall``. The files of the
folder ``mosquitto`` are the broker's and are copied without validation; private keys
are wiped from the card. The result is written to ``gateway-report.txt``.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from edge_agent.cli.first_boot import TextError, decode_text, encode_text
from gateway_daemon.config import read_gateway_settings, read_manager_settings
from service_runtime.files import (
    WIPE_SUFFIX,
    fsync_folder,
    mark_for_wipe,
    wipe_marked,
    write_atomic,
)
from service_runtime.settings import SettingsError

READERS: dict[str, Callable[[Path], object]] = {
    "gateway.toml": read_gateway_settings,
    "manager.toml": read_manager_settings,
}
RULES = Path("/etc/yamamori-firewall.nft")
SITE_RULES = 'include "/etc/yamamori/firewall/*.nft"'
"""Line of the rules that reads the site's files."""

REPORT = "gateway-report.txt"
DOUBLE_SUFFIXES = (".toml.txt", ".conf.txt", ".nft.txt")
"""Windows' editor adds the `.txt`, and Windows hides it."""

PRIVATE = b"PRIVATE KEY-----"


def take(source: Path, target: Path, rules: Path = RULES) -> Iterator[str]:
    """Copy new and valid files; yield lines for the report.

    Args:
        source: Folder on the card.
        target: Folder of the settings.
        rules: File of the firewall that reads the site's files.

    Raises:
        OSError: The target cannot be written, or the card cannot be wiped.
    """
    for name, read in READERS.items():
        for path in (source / name, source / f"{name}.txt"):
            if _is_superseded(path):
                yield f"{path.name}: IGNORED, as there is {name}"
            elif path.is_file():
                yield from _settings(path, target / name, read)
    (target / "mosquitto").mkdir(mode=0o750, exist_ok=True)
    for path in sorted((source / "mosquitto").glob("*")):
        if path.suffix != WIPE_SUFFIX:
            yield f"mosquitto/{path.name}: {_broker_file(path, target / 'mosquitto')}"
    wipe_marked(source / "mosquitto")
    (target / "firewall").mkdir(exist_ok=True)
    for path in sorted((source / "firewall").glob("*")):
        yield from _firewall_file(path, target / "firewall", rules.read_text())


def _right_name(path: Path) -> str:
    """Name as it was meant, without the added `.txt`."""
    return path.stem if path.name.endswith(DOUBLE_SUFFIXES) else path.name


def _is_superseded(path: Path) -> bool:
    """Whether there are both the file and one with the right name."""
    name = _right_name(path)
    return path.name != name and path.exists() and path.with_name(name).exists()


def _settings(
    source: Path, target: Path, read: Callable[[Path], object]
) -> Iterator[str]:
    def find_problems(fresh: Path) -> Sequence[str]:
        try:
            read(fresh)
        except SettingsError as error:
            return [f"{n}. {p}" for n, p in enumerate(error.problems, start=1)]
        return ()

    yield from _install(source.name, source, target, find_problems)


def _install(
    shown: str,
    source: Path,
    target: Path,
    find_problems: Callable[[Path], Sequence[str]],
) -> Iterator[str]:
    """Install a text file that has no problems; yield lines for the report.

    Args:
        shown: Its name in the report.
        source: The file on the card.
        target: Path of the installed one.
        find_problems: Gives the problems of the new file, before it is installed.
    """
    fresh = target.with_name(f"{target.name}.card")
    try:
        text = decode_text(source.read_bytes()).replace("\r\n", "\n")
        # nft joins an unfinished last line and what follows the include.
        end = "" if text.endswith("\n") else "\n"
        write_atomic(fresh, f"{text}{end}".encode(), 0o644)
        problems = find_problems(fresh)
    except TextError as error:
        problems = [f"1. {error}"]
    if problems:
        yield f"{shown}: REFUSED; what worked before goes on"
        yield from (f" {line}" for line in problems)
        fresh.unlink(missing_ok=True)
    else:
        fresh.replace(target)
        fsync_folder(target.parent)
        yield f"{shown}: TAKEN"


def _broker_file(path: Path, target: Path) -> str:
    if not path.is_file():
        return "IGNORED, as it is no file"
    name = _right_name(path)
    if _is_superseded(path):
        return f"IGNORED, as there is {name}"
    raw = path.read_bytes()
    data = raw.replace(b"\r\n", b"\n") if name.endswith(".conf") else raw
    write_atomic(target / name, data, 0o640)
    if PRIVATE in raw:
        mark_for_wipe(path)
    return "TAKEN"


def _firewall_file(path: Path, target: Path, rules: str) -> Iterator[str]:
    """Install a file that nft accepts together with those installed before."""
    name, shown = _right_name(path), f"firewall/{path.name}"
    if _is_superseded(path):
        yield f"{shown}: IGNORED, as there is {name}"
        return
    if not (path.is_file() and name.endswith(".nft")):
        yield f"{shown}: IGNORED, as it is no *.nft file"
        return

    def find_problems(fresh: Path) -> Sequence[str]:
        others = {each.name: each for each in target.glob("*.nft")}
        return _nft_problems({**others, name: fresh}, rules)

    yield from _install(shown, path, target / name, find_problems)


def _nft_problems(files: dict[str, Path], rules: str) -> list[str]:
    """Errors of nft about the rules with files, which it loads in this order."""
    includes = "\n".join(f'include "{files[name]}"' for name in sorted(files))
    done = subprocess.run(
        ["/usr/sbin/nft", "-c", "-f", "-"],
        input=rules.replace(SITE_RULES, includes),
        capture_output=True,
        encoding="utf-8",
        errors="replace",  # it repeats the line, in any encoding
        check=False,
    )
    return done.stderr.splitlines() or ["nft failed"] if done.returncode else []


def main() -> None:
    """Copy and report. Arguments: FOLDER ON THE CARD, FOLDER OF THE SETTINGS."""
    source, target = (Path(argument) for argument in sys.argv[1:3])
    if not source.is_dir():
        return
    lines = list(take(source, target))
    print("\n".join(lines))
    if lines:
        now = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        report = ["Yamamori: report on a gateway's files", f"written {now}", "", *lines]
        write_atomic(source / REPORT, encode_text(report))


if __name__ == "__main__":
    main()
