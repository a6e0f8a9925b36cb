"""Write what the product is made of, from the lock: a CycloneDX 1.6 bill in JSON.

    sbom.py requirements.lock out/sbom.json

Each library has its version, its hashes, the markers under which it is installed, and
who asks for it; what pip would install is what is listed.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

ROOT = Path(__file__).parents[1]
_PINNED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)(?P<rest>.*)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_ASKED_BY = re.compile(r"#\s+(?:via\s+)?([A-Za-z0-9._-]+)")


@dataclass
class Pin:
    """One library of the lock."""

    name: str
    version: str
    marker: str
    hashes: list[str] = field(default_factory=list)
    asked_by: list[str] = field(default_factory=list)


def pins(lock: str) -> Iterator[Pin]:
    """The libraries of a lock that uv or pip-compile wrote.

    Raises:
        ValueError: A line is neither a library nor something about one.
    """
    pin: Pin | None = None
    for number, line in enumerate(lock.splitlines(), start=1):
        if found := _PINNED.match(line):
            if pin is not None:
                yield pin
            marker = found["rest"].strip(" ;\\")
            pin = Pin(found["name"], found["version"], marker)
        elif pin is None or (line.strip() and not line.startswith(" ")):
            raise ValueError(f"line {number} must be name==version, got {line!r}")
        elif found := _HASH.search(line):
            pin.hashes.append(found[1])
        elif (found := _ASKED_BY.search(line)) and found[1] != "via":
            pin.asked_by.append(found[1])
    if pin is not None:
        yield pin


def bill(lock: str) -> Bom:
    """The bill of a lock.

    Raises:
        ValueError: A library has no hash, or a line is none of a lock.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    ours = project["project"]
    bom = Bom()
    root = Component(
        name=ours["name"],
        version=ours["version"],
        type=ComponentType.APPLICATION,
        bom_ref=ours["name"],
    )
    bom.metadata.component = root
    # A library may be there twice, for different versions of Python.
    parts = [(pin, _component(pin)) for pin in pins(lock)]
    named: dict[str, list[Component]] = {}
    for pin, part in parts:
        bom.components.add(part)
        named.setdefault(pin.name, []).append(part)
    for pin, part in parts:
        for name in pin.asked_by:
            for asker in named.get(name, [root]):
                bom.register_dependency(asker, [part])
    return bom


def _component(pin: Pin) -> Component:
    if not pin.hashes:
        raise ValueError(f"{pin.name} must have a hash in the lock; write it anew")
    marker = [Property(name="python:marker", value=pin.marker)] if pin.marker else []
    return Component(
        name=pin.name,
        version=pin.version,
        type=ComponentType.LIBRARY,
        bom_ref=f"{pin.name}@{pin.version}",
        purl=PackageURL("pypi", None, pin.name.lower(), pin.version),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=h) for h in pin.hashes],
        properties=marker,
    )


def main(lock: str, out: str) -> None:
    """Write the bill of a lock, if it is a valid one."""
    text = JsonV1Dot6(bill(Path(lock).read_text(encoding="utf-8"))).output_as_string(
        indent=1
    )

    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
