"""Update bundles: a signed root for one slot, made by the builder, applied by a node.

A bundle is a tar of three members in this order: ``manifest.json``, its Ed25519
signature ``manifest.sig``, and ``root.squashfs``, whose size and SHA-256 are in the
manifest. The signature is verified before anything is written, and the written root is
read back before it can be booted.
"""

import argparse
import hashlib
import io
import json
import os
import platform
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import (
    load_pem_private_key,
    load_pem_public_key,
)

ABOUT = Path("etc/yamamori-image")
PUBLIC_KEY = Path("usr/share/yamamori/update.pub")
MANIFEST, SIGNATURE, ROOT = "manifest.json", "manifest.sig", "root.squashfs"
CHUNK = 1 << 20
MAX_MANIFEST_BYTES = 65536


class BundleError(Exception):
    """The bundle cannot be applied; the active slot is unchanged."""


def about(path: Path) -> dict[str, str]:
    """Read an image's description: role, version, kernel, epoch."""
    lines = path.read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def make(root: Path, facts: dict[str, str], key: Path, out: Path) -> None:
    """Write a bundle."""
    digest = hashlib.sha256()
    with root.open("rb") as file:
        for chunk in _chunks(file):
            digest.update(chunk)
    content = {**facts, "bytes": root.stat().st_size, "sha256": digest.hexdigest()}
    manifest = json.dumps(content, sort_keys=True).encode()
    private: Any = load_pem_private_key(key.read_bytes(), None)
    with tarfile.open(out, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in ((MANIFEST, manifest), (SIGNATURE, private.sign(manifest))):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        member = tarfile.TarInfo(ROOT)
        member.size = root.stat().st_size
        with root.open("rb") as file:
            tar.addfile(member, file)


def apply(bundle: Path, slot: Path, ours: dict[str, str], key: Path) -> str:
    """Write a bundle's root to a slot, and read it back.

    Returns:
        A sentence for the report.

    Raises:
        BundleError: It is incomplete, has no valid signature, or is not for this
            machine.
        OSError: The card cannot be read or written.
    """
    try:
        with tarfile.open(bundle, "r|") as tar:
            content = _manifest(tar, key)
            _check(content, ours)
            root = _next(tar, ROOT)
            written = _write(root, slot, content["bytes"])
    except (tarfile.TarError, EOFError) as error:
        raise BundleError(f"{bundle.name} must be a whole bundle: {error}") from error
    if written != content["sha256"] or _read_back(slot, content["bytes"]) != written:
        raise BundleError(
            f"{ROOT} must have SHA-256 {content['sha256']}, got {written}; copy it anew"
        )
    return f"Version {content['version']} is written; it is kept if it works."


def _manifest(tar: tarfile.TarFile, key: Path) -> dict[str, Any]:
    manifest = _next(tar, MANIFEST).read(MAX_MANIFEST_BYTES)
    signature = _next(tar, SIGNATURE).read(MAX_MANIFEST_BYTES)
    public: Any = load_pem_public_key(key.read_bytes())
    try:
        public.verify(signature, manifest)
    except InvalidSignature as error:
        raise BundleError(
            "the signature must be of the key this image was built with; "
            "take the bundle from where the image came from"
        ) from error
    content: dict[str, Any] = json.loads(manifest)
    return content


def _check(content: dict[str, Any], ours: dict[str, str]) -> None:
    for name, remedy in (
        ("role", "take the bundle of this role"),
        ("kernel", "flash the card anew: the kernel is shared by both slots"),
    ):
        if content[name] != ours[name]:
            raise BundleError(
                f"{name} must be {ours[name]}, got {content[name]}; {remedy}"
            )
    if int(content["epoch"]) < int(ours["epoch"]):
        version = content["version"]
        raise BundleError(
            f"version must not be older than {ours['version']}, got {version}"
        )


def _next(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    member = tar.next()
    file = member and tar.extractfile(member)
    if member is None or file is None or member.name != name:
        got = member and member.name
        raise BundleError(f"a bundle must hold {name} here, got {got}; copy it anew")
    return file


def _write(root: IO[bytes], slot: Path, size: int) -> str:
    digest, count = hashlib.sha256(), 0
    with slot.open("r+b") as out:
        if out.seek(0, os.SEEK_END) < size:
            raise BundleError(f"{slot} must hold {size} bytes, got {out.tell()}")
        out.seek(0)
        for chunk in _chunks(root):
            count += len(chunk)
            digest.update(chunk)
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    if count != size:
        raise BundleError(f"{ROOT} must have {size} bytes, got {count}; copy it anew")
    return digest.hexdigest()


def _read_back(slot: Path, size: int) -> str:
    digest = hashlib.sha256()
    with slot.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while size:
            chunk = file.read(min(CHUNK, size))
            size -= len(chunk)
            digest.update(chunk)
    return digest.hexdigest()


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        yield chunk


def main() -> None:
    """Run the command of the builder or the node."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    maker = commands.add_parser("make")
    for name in ("root", "about", "key", "out"):
        maker.add_argument(f"--{name}", type=Path, required=True)
    taker = commands.add_parser("apply")
    for name in ("bundle", "slot"):
        taker.add_argument(f"--{name}", type=Path, required=True)
    taker.add_argument("--root", type=Path, default=Path("/"))
    given = parser.parse_args()
    if given.command == "make":
        make(given.root, about(given.about), given.key, given.out)
        return
    ours = about(given.root / ABOUT)
    if ours["kernel"] != platform.release():
        sys.exit("the running kernel must be the image's; flash the card anew")
    try:
        print(apply(given.bundle, given.slot, ours, given.root / PUBLIC_KEY))
    except (BundleError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
