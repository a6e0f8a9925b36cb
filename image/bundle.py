"""Update bundles: a signed root for one slot, made by the builder, applied by a node.

A bundle is a tar (ustar) of three members in this order: ``manifest.json``, its Ed25519
signature ``manifest.sig``, and ``root.squashfs``, whose size and SHA-256 are in the
manifest. The signature is verified before anything is written or a size from the file
is trusted, and the written root is read back before it can be booted.

``update.pub`` in the image lists the keys that may sign. Its first key, whose private
half is kept offline, may also revoke keys and images by two fields of the manifest:
`revoked`, ids of keys that are never accepted again, and `from_epoch`, the lowest epoch
of images that may still be installed. A bundle without a root does only this. The node
stores both fields.
"""

import argparse
import hashlib
import io
import json
import os
import platform
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

ABOUT = Path("etc/yamamori-image")
PUBLIC_KEYS = Path("usr/share/yamamori/update.pub")
TRUST = Path("data/slot/trust.json")
MANIFEST, SIGNATURE, ROOT = "manifest.json", "manifest.sig", "root.squashfs"
CHUNK = 1 << 20
MAX_MANIFEST_BYTES = 65536
SIGNATURE_BYTES = 64
PEM_KEY = re.compile(
    b"-----BEGIN PUBLIC KEY-----.+?-----END PUBLIC KEY-----", re.DOTALL
)
EXIT_TRUST_ONLY = 3
"""The bundle had no root: there is nothing to boot."""


class BundleError(Exception):
    """The bundle cannot be applied; the active slot is unchanged."""


def about(path: Path) -> dict[str, str]:
    """Read an image's description: role, version, kernel, epoch."""
    lines = path.read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def read_keys(pem: bytes) -> list[Ed25519PublicKey]:
    """The keys of a PEM file, in its order."""
    keys = [load_pem_public_key(found) for found in PEM_KEY.findall(pem)]
    return [each for each in keys if isinstance(each, Ed25519PublicKey)]


def key_id(key: Ed25519PublicKey) -> str:
    """SHA-256 of a public key."""
    raw = key.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()


def make(
    root: Path | None,
    facts: dict[str, str],
    key: Path,
    out: Path,
    *,
    revoked: Iterable[str] = (),
    from_epoch: int | None = None,
) -> None:
    """Write a bundle; without a root, one that only revokes."""
    content: dict[str, Any] = dict(facts)
    if root is not None:
        with root.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        content |= {"bytes": root.stat().st_size, "sha256": digest}
    if ids := sorted(revoked):
        content["revoked"] = ids
    if from_epoch is not None:
        content["from_epoch"] = from_epoch
    manifest = json.dumps(content, sort_keys=True).encode()
    private: Any = load_pem_private_key(key.read_bytes(), None)
    with tarfile.open(out, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in ((MANIFEST, manifest), (SIGNATURE, private.sign(manifest))):
            _add(tar, name, io.BytesIO(data), len(data))
        if root is not None:
            with root.open("rb") as file:
                _add(tar, ROOT, file, root.stat().st_size)


def _add(tar: tarfile.TarFile, name: str, file: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size = size
    tar.addfile(member, file)


def apply(
    bundle: Path, slot: Path, ours: dict[str, str], keys: Path, trust: Path
) -> tuple[str, bool]:
    """Write a bundle's root to a slot, and read it back.

    Args:
        bundle: The bundle.
        slot: Device of the slot that does not run.
        ours: Description of the running image.
        keys: Public keys of the running image.
        trust: File of the revoked keys and epochs.

    Returns:
        A sentence for the report, and whether there is a root to boot.

    Raises:
        BundleError: It is incomplete, has no valid signature, or is not for this
            machine.
        OSError: The card cannot be read or written.
    """
    with bundle.open("rb") as file:
        taken_back = _read_trust(trust)
        content = _manifest(file, read_keys(keys.read_bytes()), taken_back)
        has_root = "sha256" in content
        _check(content, ours, taken_back, has_root=has_root)
        _store_trust(trust, taken_back, content)
        version = content["version"]
        if not has_root:
            return f"{version} is applied: keys and versions taken back.", False
        if _open_member(file, ROOT, content["bytes"]) != content["bytes"]:
            raise BundleError(f"{ROOT} must have the size of {MANIFEST}; copy it anew")
        written = _write(file, slot, content["bytes"])
    if written != content["sha256"] or _read_back(slot, content["bytes"]) != written:
        raise BundleError(
            f"{ROOT} must have SHA-256 {content['sha256']}, got {written}; copy it anew"
        )
    return f"Version {version} is written; it is kept if it works.", True


def _manifest(
    file: IO[bytes], keys: list[Ed25519PublicKey], taken_back: dict[str, Any]
) -> dict[str, Any]:
    manifest = _read_member(file, MANIFEST, MAX_MANIFEST_BYTES)
    signature = _read_member(file, SIGNATURE, SIGNATURE_BYTES)
    trusted = [each for each in keys if key_id(each) not in taken_back["revoked"]]
    signer = next(
        (key for key in trusted if _has_signed(key, signature, manifest)), None
    )
    if signer is None:
        raise BundleError(
            "the signature must be of a key this image was built with that is not "
            "revoked; take the bundle from where the image came from"
        )
    content: dict[str, Any] = json.loads(manifest)
    takes_back = {"revoked", "from_epoch"} & set(content)
    if takes_back and key_id(signer) != key_id(keys[0]):
        raise BundleError(
            f"{' and '.join(sorted(takes_back))} must be signed by the first key of "
            f"{PUBLIC_KEYS}; sign the bundle with the offline key"
        )
    if key_id(signer) in content.get("revoked", ()):
        raise BundleError("revoked must not contain the key that signs")
    return content


def _has_signed(key: Ed25519PublicKey, signature: bytes, data: bytes) -> bool:
    try:
        key.verify(signature, data)
    except InvalidSignature:
        return False
    return True


def _check(
    content: dict[str, Any],
    ours: dict[str, str],
    taken_back: dict[str, Any],
    *,
    has_root: bool,
) -> None:
    for name, remedy in (
        ("role", "take the bundle of this role"),
        ("kernel", "flash the card anew: the kernel is shared by both slots"),
    ):
        if has_root and content[name] != ours[name]:
            raise BundleError(
                f"{name} must be {ours[name]}, got {content[name]}; {remedy}"
            )
    if not has_root:
        return
    epoch, version = int(content["epoch"]), content["version"]
    is_same = version == ours["version"] and epoch == int(ours["epoch"])
    if epoch <= int(ours["epoch"]) and not is_same:
        raise BundleError(
            f"version must not be older than {ours['version']}, got {version} (epoch "
            f"{epoch}); build it from a later commit"
        )
    from_epoch = max(taken_back["from_epoch"], content.get("from_epoch", 0))
    if epoch < from_epoch:
        raise BundleError(
            f"epoch must be at least {from_epoch}, as older versions were taken back, "
            f"got {epoch}; take the newest bundle"
        )


def _read_trust(path: Path) -> dict[str, Any]:
    """Revoked keys and epochs; a damaged file is an error, or it would end them."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return {"revoked": [], "from_epoch": 0}
    try:
        stored = json.loads(text)
        return {
            "revoked": [str(each) for each in stored["revoked"]],
            "from_epoch": int(stored["from_epoch"]),
        }
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError(
            f"{path} is damaged: {error}; flash the card anew, or restore the file"
        ) from error


def _store_trust(
    path: Path, taken_back: dict[str, Any], content: dict[str, Any]
) -> None:
    new = {
        "revoked": sorted({*taken_back["revoked"], *content.get("revoked", ())}),
        "from_epoch": max(taken_back["from_epoch"], content.get("from_epoch", 0)),
    }
    if new == taken_back:
        return
    fresh = path.with_name(path.name + ".new")
    with fresh.open("w") as file:
        json.dump(new, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _read_member(file: IO[bytes], name: str, limit: int) -> bytes:
    size = _open_member(file, name, limit)
    data = file.read(size)
    file.read(-size % tarfile.BLOCKSIZE)
    if len(data) != size:
        raise BundleError(
            f"{name} must have {size} bytes, got {len(data)}; copy it anew"
        )
    return data


def _open_member(file: IO[bytes], name: str, limit: int) -> int:
    """Read one header block, which precedes any check of a signature; the size.

    tarfile's own reader would first load extended headers of any size.
    """
    try:
        member = tarfile.TarInfo.frombuf(
            file.read(tarfile.BLOCKSIZE), "ascii", "surrogateescape"
        )
    except tarfile.TarError as error:
        raise BundleError(
            f"a bundle must hold {name} here, got no header: {error}; copy it anew"
        ) from error
    if not member.isreg() or member.name != name or not 0 <= member.size <= limit:
        raise BundleError(
            f"a bundle must hold {name} of at most {limit} bytes here, got "
            f"{member.name[:100]!r} of {member.size}; copy it anew"
        )
    return member.size


def _write(root: IO[bytes], slot: Path, size: int) -> str:
    digest, count = hashlib.sha256(), 0
    with slot.open("r+b") as out:
        if out.seek(0, os.SEEK_END) < size:
            raise BundleError(f"{slot} must hold {size} bytes, got {out.tell()}")
        out.seek(0)
        for chunk in _chunks(root, size):
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


def _chunks(file: IO[bytes], size: int) -> Iterator[bytes]:
    while size and (chunk := file.read(min(CHUNK, size))):
        size -= len(chunk)
        yield chunk


def main() -> None:
    """Run the command of the builder or the node."""
    given = _parse_arguments()
    if given.command == "make":
        revoked = [key_id(key) for path in given.revoke for key in _keys_of(path)]
        make(
            given.root,
            about(given.about),
            given.key,
            given.out,
            revoked=revoked,
            from_epoch=given.from_epoch,
        )
        return
    ours = about(given.root / ABOUT)
    if ours["kernel"] != platform.release():
        sys.exit("the running kernel must be the image's; flash the card anew")
    keys, trust = given.root / PUBLIC_KEYS, given.root / TRUST
    try:
        sentence, has_root = apply(given.bundle, given.slot, ours, keys, trust)
    except (BundleError, OSError) as error:
        sys.exit(str(error))
    print(sentence)
    if not has_root:
        sys.exit(EXIT_TRUST_ONLY)


def _keys_of(path: Path) -> Iterable[Ed25519PublicKey]:
    keys = read_keys(path.read_bytes())
    if not keys:
        sys.exit(f"{path} must hold a public Ed25519 key in PEM; it holds none")
    return keys


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    maker = commands.add_parser("make")
    for name in ("about", "key", "out"):
        maker.add_argument(f"--{name}", type=Path, required=True)
    maker.add_argument("--root", type=Path, help="absent: only revoke")
    maker.add_argument(
        "--revoke", type=Path, action="append", default=[], help="public key, PEM"
    )
    maker.add_argument(
        "--from-epoch", type=int, help="images of a smaller epoch are taken back"
    )
    taker = commands.add_parser("apply")
    for name in ("bundle", "slot"):
        taker.add_argument(f"--{name}", type=Path, required=True)
    taker.add_argument("--root", type=Path, default=Path("/"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
