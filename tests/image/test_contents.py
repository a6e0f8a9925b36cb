"""The contents of an image, and the files published with it."""

import hashlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from image.forms import only_long
from image.vm import ROOT, built

from image.manifest import entry
from scripts.wanted import wanted

MAX_BYTES = 100_000_000
PI = {
    "python_version": "3.11",
    "python_full_version": "3.11.2",
    "platform_machine": "aarch64",
}


def test_node_has_only_the_packages_it_needs_on_arm64() -> None:
    """The GPIO library of the target, and no packages of the backend."""
    names = wanted(["edge", "pi"], PI).keys()

    assert {"lgpio", "gpiozero", "paho-mqtt", "sqlite-utils"} <= names
    assert not {"pip", "pandas", "pyspark", "numpy", "adafruit-lgpio"} & names


def test_version_of_a_library_is_that_for_the_python_of_the_target() -> None:
    """The lock has two versions of some; pip would refuse the other."""
    newer = PI | {"python_version": "3.13", "python_full_version": "3.13.5"}
    found = {
        wanted(["backend"], target)["contourpy"].split()[0] for target in (PI, newer)
    }

    assert len(found) == 2


def test_setup_installs_the_whole_lock() -> None:
    """Each extra is in its list or installed first, and no library is in none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    setup = (ROOT / "scripts/setup").read_text()
    (named,) = re.findall(r'use=develop extras="(.*)"', setup)
    lock = (ROOT / "requirements.lock").read_text()

    assert {*named.split(), "build"} == extras
    assert wanted(sorted(extras)).keys() == set(
        re.findall(r"^(\S+)==", lock, re.MULTILINE)
    )


def test_requirements_are_pinned_by_hash() -> None:
    """Pip installs the reviewed files on any machine."""
    script = ROOT / "scripts/wanted.py"
    done = subprocess.run(
        [sys.executable, script, "--python", "3.11", "edge", "pi"],
        capture_output=True,
        text=True,
        check=True,
    )
    pins = re.findall(r"^(\S+)==\S+", done.stdout, re.MULTILINE)

    assert len(pins) == len(wanted(["edge", "pi"], PI))
    assert done.stdout.count("--hash=sha256:") >= len(pins)
    assert "platform_machine" not in done.stdout


def test_manifest_has_the_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raspberry Pi Imager refuses an image that does not match them."""
    image, packed = tmp_path / "a.img", tmp_path / "a.img.xz"
    image.write_bytes(b"image")
    packed.write_bytes(b"packed")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    listed = entry(image, packed, "node", "1")

    assert listed["extract_sha256"] == hashlib.sha256(b"image").hexdigest()
    assert listed["image_download_sha256"] == hashlib.sha256(b"packed").hexdigest()
    assert listed["image_download_size"] == 6
    assert listed["release_date"] == "1970-01-01"
    assert str(listed["url"]).startswith("file:///")
    monkeypatch.setenv("IMAGE_URL", "https://office.example/images/")
    remote = entry(image, packed, "node", "1")
    assert remote["url"] == "https://office.example/images/a.img.xz"


def test_sbom_lists_debian_and_python_packages_reproducibly(
    tmp_path: Path,
) -> None:
    """It also lists our own package, and has no time stamp of the build."""
    listed = ("--packages", "image/lock/node")
    options = ("--image", "yamamori-node", "--version", "1.2", *listed)
    made = [tmp_path / "a", tmp_path / "b"]
    for out in made:
        subprocess.run(
            [sys.executable, "scripts/sbom.py", "requirements.lock", out, *options],
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
def test_built_image_is_complete_signed_and_small() -> None:
    """Checks checksums, signature, SBOM and size."""
    folder = built("node")
    verify = "openssl pkeyutl -verify -rawin -pubin -inkey ../keys/signer.pub"
    options = "-in SHA256SUMS -sigfile SHA256SUMS.sig"
    for command in ("sha256sum --check --quiet SHA256SUMS", f"{verify} {options}"):
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    listed = json.loads((folder / "sbom.cdx.json").read_text())["components"]
    packed = list(folder.glob("*.img.xz"))

    assert {"python3.11", "lgpio", "yamamori"} <= {part["name"] for part in listed}
    assert all(path.stat().st_size <= MAX_BYTES for path in packed)


@only_long
@pytest.mark.image
def test_ssh_reads_keys_from_the_folder_that_the_access_script_writes() -> None:
    """The root is read-only, so files that change at each start are under /run."""
    command = ["unsquashfs", "-ll", built("node") / "root.squashfs", "root/.ssh"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("root/.ssh -> /run/yamamori-access")
