"""Write the bill of materials of the product or of an image: CycloneDX 1.6 in JSON.

    sbom.py requirements.lock out/sbom.json [--built UNIX_S]
    sbom.py LOCK OUT --image yamamori-node --version 1.2 --built UNIX_S --packages LIST

Lists what pip would install: each library with its version, hashes, environment
markers and dependants. For an image also Debian's packages, one per line of LIST: name,
version, architecture. The bill is reproducible byte for byte.
"""

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from setuptools_scm import get_version

ROOT = Path(__file__).parents[1]
NAME = "yamamori"
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
    """Yield the libraries of a lock that uv or pip-compile wrote.

    Raises:
        ValueError: A line is not part of a lock.
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
    """Return the bill of materials of a lock.

    Raises:
        ValueError: A library has no hash, or a line is not part of a lock.
    """
    bom = Bom(serial_number=uuid5(NAMESPACE_URL, lock))
    root = bom.metadata.component = ours()
    # A library may occur twice, for different versions of Python.
    parts = [(pin, _component(pin)) for pin in pins(lock)]
    named = {root.name: [root]}
    for pin, part in parts:
        bom.components.add(part)
        named.setdefault(pin.name, []).append(part)
    for pin, part in parts:
        for name in pin.asked_by:
            for asker in named.get(name, []):
                bom.register_dependency(asker, [part])
    return bom


def ours() -> Component:
    """Return the component of the product itself."""
    return Component(
        name=NAME,
        version=get_version(ROOT, fallback_root=ROOT),
        type=ComponentType.APPLICATION,
        bom_ref=NAME,
    )


def put_into(image: Component, packages: str, bom: Bom) -> None:
    """Make a bill that of an image, with Debian's packages added."""
    bom.metadata.component = image
    bom.serial_number = uuid5(bom.serial_number, f"{image.version}\n{packages}")
    parts = [ours(), *(_package(*line.split()) for line in packages.splitlines())]
    bom.components.update(parts)
    bom.register_dependency(image, parts)


def _package(name: str, version: str, architecture: str) -> Component:
    purl = PackageURL("deb", "debian", name, version, {"arch": architecture})
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=purl.to_string(),
        purl=purl,
    )


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


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("lock", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--image", help="its name")
    parser.add_argument("--version", default="", help="of the image")
    parser.add_argument("--built", type=int, default=0, help="Unix time")
    parser.add_argument("--packages", type=Path, help="Debian's, in the image")
    given = parser.parse_args()
    bom = bill(given.lock.read_text(encoding="utf-8"))
    bom.metadata.timestamp = datetime.fromtimestamp(given.built, UTC)
    if given.image:
        packages = given.packages.read_text(encoding="utf-8")
        image = Component(
            name=given.image,
            version=given.version,
            type=ComponentType.FIRMWARE,
            bom_ref=given.image,
        )
        put_into(image, packages, bom)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(JsonV1Dot6(bom).output_as_string(indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
