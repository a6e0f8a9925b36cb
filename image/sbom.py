"""Writes what an image is made of as CycloneDX: Debian's packages and the wheels."""

import argparse
import os
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot5
from packageurl import PackageURL


def debian(packages: Path) -> list[Component]:
    """Components of ``name version architecture`` lines."""
    found = []
    for line in packages.read_text().splitlines():
        name, version, architecture = line.split()
        purl = PackageURL("deb", "debian", name, version, {"arch": architecture})
        found.append(_component(name, version, purl))
    return found


def wheels(folder: Path) -> list[Component]:
    """Components of the distributions in a folder."""
    return [
        _component(d.name, d.version, PackageURL("pypi", None, d.name, d.version))
        for d in sorted(distributions(path=[str(folder)]), key=lambda d: d.name)
    ]


def _component(name: str, version: str, purl: PackageURL) -> Component:
    return Component(
        name=name,
        version=version,
        purl=purl,
        bom_ref=purl.to_string(),
        type=ComponentType.LIBRARY,
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("role", "version"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("packages", "wheels", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    given = parser.parse_args()
    bom = Bom(components=debian(given.packages) + wheels(given.wheels))
    bom.metadata.component = Component(
        name=f"yamamori-{given.role}",
        version=given.version,
        type=ComponentType.FIRMWARE,
        bom_ref="image",
    )
    built = int(os.environ["SOURCE_DATE_EPOCH"])
    bom.metadata.timestamp = datetime.fromtimestamp(built, UTC)
    given.out.write_text(JsonV1Dot5(bom).output_as_string(indent=1))


if __name__ == "__main__":
    main()
