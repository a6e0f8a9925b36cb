"""Writes the list from which Raspberry Pi Imager installs our image, with checksums."""

import argparse
import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path


def entry(image: Path, packed: Path, role: str, version: str) -> dict[str, object]:
    """Return the entry of the image in Imager's list."""
    built = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC)
    return {
        "name": f"Yamamori {role} {version}",
        "description": f"Landslide sensors: {role}. Put node.toml on the card after it"
        if role == "node"
        else "Landslide sensors: gateway with its broker and time server",
        "url": _url(packed),
        "release_date": built.date().isoformat(),
        "extract_size": image.stat().st_size,
        "extract_sha256": _digest(image),
        "image_download_size": packed.stat().st_size,
        "image_download_sha256": _digest(packed),
        "devices": ["pi4-64bit", "pi3-64bit"],
        "init_format": "none",
    }


def _url(packed: Path) -> str:
    """Return the download URL: under IMAGE_URL, or a file of this machine."""
    base = os.environ.get("IMAGE_URL")
    return f"{base.rstrip('/')}/{packed.name}" if base else packed.resolve().as_uri()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("image", "packed", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("role", "version"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    listed = [entry(given.image, given.packed, given.role, given.version)]
    given.out.write_text(json.dumps({"os_list": listed}, indent=1) + "\n")


if __name__ == "__main__":
    main()
