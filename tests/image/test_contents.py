"""What goes into an image, and what lies beside it."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from image.forms import only_long
from image.vm import ROOT, built

from image.manifest import entry
from image.wanted import blocks, closure

MOST_BYTES = 100_000_000


def test_node_has_what_it_needs_for_arm64_and_no_more() -> None:
    """The pin library of the target, and nothing of the backend."""
    names = closure(["edge", "pi"])

    assert {"lgpio", "gpiozero", "paho-mqtt", "sqlite-utils"} <= names
    assert not {"pip", "pandas", "pyspark", "numpy", "adafruit-lgpio"} & names
    assert names <= blocks().keys()


def test_requirements_are_pinned_by_hash() -> None:
    """Pip shall take what was looked at, on whatever machine it runs."""
    script = ROOT / "image/wanted.py"
    done = subprocess.run(
        [sys.executable, script, "edge", "pi"],
        capture_output=True,
        text=True,
        check=True,
    )
    pins = re.findall(r"^(\S+)==\S+", done.stdout, re.MULTILINE)

    assert len(pins) == len(closure(["edge", "pi"]))
    assert done.stdout.count("--hash=sha256:") >= len(pins)
    assert "platform_machine" not in done.stdout


def test_manifest_has_the_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Imager refuses an image that has changed."""
    image, packed = tmp_path / "a.img", tmp_path / "a.img.xz"
    image.write_bytes(b"image")
    packed.write_bytes(b"packed")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    told = entry(image, packed, "node", "1")

    assert told["extract_sha256"] == hashlib.sha256(b"image").hexdigest()
    assert told["image_download_sha256"] == hashlib.sha256(b"packed").hexdigest()
    assert told["image_download_size"] == 6
    assert told["release_date"] == "1970-01-01"
    assert str(told["url"]).startswith("file:///")
    monkeypatch.setenv("IMAGE_URL", "https://office.example/images/")
    there = entry(image, packed, "node", "1")
    assert there["url"] == "https://office.example/images/a.img.xz"


def test_bill_of_an_image_has_both_kinds_and_is_the_same_every_time(
    tmp_path: Path,
) -> None:
    """Debian's packages, wheels and ours; nothing of it depends on the hour."""
    listed = ("--packages", "image/lock/node")
    given = ("--image", "yamamori-node", "--version", "1.2", *listed)
    made = [tmp_path / "a", tmp_path / "b"]
    for out in made:
        subprocess.run(
            [sys.executable, "scripts/sbom.py", "requirements.lock", out, *given],
            cwd=ROOT,
            check=True,
        )
    bill = json.loads(made[0].read_text())

    assert made[0].read_bytes() == made[1].read_bytes()
    assert bill["metadata"]["component"]["name"] == "yamamori-node"
    assert {"python3.11", "lgpio", "yamamori"} <= {
        p["name"] for p in bill["components"]
    }


@pytest.mark.image
def test_what_was_built_is_whole_signed_and_small() -> None:
    """Checksums, signature, list of contents, and the weight."""
    folder = built("node")
    verify = "openssl pkeyutl -verify -rawin -pubin -inkey ../keys/update.pub"
    given = "-in SHA256SUMS -sigfile SHA256SUMS.sig"
    for command in ("sha256sum --check --quiet SHA256SUMS", f"{verify} {given}"):
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    listed = json.loads((folder / "sbom.cdx.json").read_text())["components"]
    packed = list(folder.glob("*.img.xz"))

    assert {"python3.11", "lgpio", "yamamori"} <= {part["name"] for part in listed}
    assert all(path.stat().st_size <= MOST_BYTES for path in packed)


@only_long
@pytest.mark.image
def test_keys_of_operators_are_looked_for_where_they_are_written() -> None:
    """The root is read-only: what changes at each start lies under /run."""
    command = ["unsquashfs", "-ll", built("node") / "root.squashfs", "root/.ssh"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.rstrip().endswith("root/.ssh -> /run/yamamori-access")
