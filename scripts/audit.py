"""Compare the lock with published advisories, without network access.

ADVISORIES is a folder or a zip of OSV records in JSON, such as the `all.zip` that
osv.dev publishes for PyPI; copy it from a machine with internet access. Withdrawn
records are ignored. Exit code 0: no pinned version is affected; 1: at least one is; 2:
the records cannot be read, or none is about PyPI, so that nothing was compared.

Only published vulnerabilities are found, and none of Debian's packages.

Source: OSV schema 1.6, "affected" and "evaluation algorithm" (ossf.github.io).
"""

import json
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from packaging.version import Version
from sbom import pins

_FIRST = Version("0.dev0")


class NoRecordError(ValueError):
    """A file holds no OSV record."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} must be one OSV record, an object")


@dataclass(frozen=True)
class Found:
    """A pinned library that a record affects."""

    name: str
    version: str
    record: str
    summary: str
    fixed: tuple[str, ...]

    def __str__(self) -> str:
        """Format one line, with the remedy."""
        remedy = f"take {' or '.join(self.fixed)}" if self.fixed else "not mended yet"
        return f"{self.name} {self.version}: {self.record} {self.summary} ({remedy})"


def records(place: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the records of a folder or a zip.

    Raises:
        OSError: It cannot be read.
        ValueError: A record is not a JSON object; the message names the file.
    """
    if place.is_dir():
        texts = ((str(path), path.read_bytes()) for path in place.rglob("*.json"))
    else:
        archive = zipfile.ZipFile(place)
        names = [name for name in archive.namelist() if name.endswith(".json")]
        texts = ((name, archive.read(name)) for name in names)
    for name, text in texts:
        try:
            record = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{name} must be JSON: {error}") from error
        if not isinstance(record, dict):
            raise NoRecordError(name)
        yield record


def affected(record: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the PyPI libraries that a record is about, by normalized name."""
    if record.get("withdrawn"):
        return
    for part in record.get("affected", ()):
        package = part.get("package", {})
        if package.get("ecosystem") == "PyPI":
            yield normal(str(package.get("name", ""))), part


def normal(name: str) -> str:
    """Normalize a library's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_in(version: str, part: Mapping[str, Any]) -> bool:
    """Whether a version is listed, or is in a range of type ECOSYSTEM."""
    if version in part.get("versions", ()):
        return True
    ranges = [r for r in part.get("ranges", ()) if r.get("type") == "ECOSYSTEM"]
    return any(_lies_in(Version(version), each.get("events", ())) for each in ranges)


def _lies_in(version: Version, events: list[Mapping[str, str]]) -> bool:
    """Whether a version is affected after the last event at or before it."""
    changes = [
        (_version(text), kind) for event in events for kind, text in event.items()
    ]
    is_affected = False
    for at, kind in sorted(changes, key=lambda one: (one[0], one[1] == "introduced")):
        if at < version or (at == version and kind != "last_affected"):
            is_affected = kind == "introduced"
    return is_affected


def _version(text: str) -> Version:
    return _FIRST if text == "0" else Version(text)


def _fixes(part: Mapping[str, Any]) -> tuple[str, ...]:
    events = [e for r in part.get("ranges", ()) for e in r.get("events", ())]
    return tuple(sorted({event["fixed"] for event in events if "fixed" in event}))


def audit(lock: str, place: Path) -> tuple[int, list[Found]]:
    """Count the records about PyPI, and find those that affect a pinned version.

    Raises:
        OSError: The records cannot be read.
        ValueError: A record or a version in it is invalid.
    """
    pinned: dict[str, set[str]] = {}
    for pin in pins(lock):
        pinned.setdefault(normal(pin.name), set()).add(pin.version)
    count, found = 0, set()
    for record in records(place):
        parts = list(affected(record))
        count += bool(parts)
        text = str(record.get("id", "")), str(record.get("summary", "")).strip()
        found |= {
            Found(name, version, *text, _fixes(part))
            for name, part in parts
            for version in pinned.get(name, ())
            if is_in(version, part)
        }
    return count, sorted(found, key=lambda each: (each.name, each.record))


@click.command(help=__doc__)
@click.argument("lock", type=click.Path(path_type=Path))
@click.argument("advisories", type=click.Path(path_type=Path))
def main(lock: Path, advisories: Path) -> None:
    """Run the command."""
    text = lock.read_text(encoding="utf-8")
    try:
        count, found = audit(text, advisories)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise click.UsageError(f"{advisories} must hold OSV records: {error}") from None
    if not count:
        problem = "must hold OSV records of PyPI, it has none; nothing was compared"
        raise click.UsageError(f"{advisories} {problem}")
    for each in found:
        click.echo(each)
    total = len(list(pins(text)))
    click.echo(f"{total} libraries against {count} records: {len(found)} to look at")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
