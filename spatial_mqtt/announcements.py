"""Notices and rollouts for areas, and the transfer of bundles. No I/O but key files.

A notice is retained on ``/notice/<area>`` at the gateways' brokers; a node subscribes
for its own cell and every area around it. It is JSON, so that it can be published by
hand. A rollout, retained on ``/update/<area>``, selects the nodes of an area that
install a version; the bundle itself has a signature of its own.

A bundle comes in chunks, each requested by the receiver. ``/piece/want/<name>`` carries
a `FileChunkRequest`, ``/piece/for/<name>`` the `FileChunk` that answers it, both in
MessagePack. The server keeps no state: after a loss or a restart the same request is
sent again.

A signed notice or rollout is JSON ``{"body": "...", "signature": "..."}``: the message
as text, and in base64 the Ed25519 signature of topic, line feed and text. The topic is
signed too, so that a notice for one area is not valid for another. `cryptography` is
imported only where keys are set: it takes 10 MB.

Source: RFC 8032. Keys are PEM files, as ``openssl genpkey -algorithm ed25519`` and
``openssl pkey -pubout`` write them.
"""

import base64
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Self

import msgspec

from service_runtime.decoding import DECODE_ERRORS, decode_json, decode_msgpack
from service_runtime.errors import FieldError
from spatial_mqtt.errors import FileChunkError, NoticeError, RolloutError
from spatial_mqtt.priority import LADDER

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

MAX_NOTICE_BYTES = 4096
"""Largest notice, drill or rollout."""

MIN_CRITERION_MM, MAX_CRITERION_MM = 10.0, 2000.0
"""Plausible range: the criteria of all Japan lie well within."""

OpenNotice = Callable[[str, bytes], bytes]
"""Returns the JSON of a notice by topic and payload, or raises `NoticeError`."""

MAX_TIME_S = 4_102_444_800.0  # the year 2100: milliseconds are refused
MAX_END_S = 1e11  # of a notice that is meant to have no end; milliseconds are more


class CriteriaNotice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rain criteria of an area, as soil water index; null is a level not judged there.

    Attributes:
        advisory_mm: Criterion of level 2.
        warning_mm: Criterion of level 3.
        special_mm: Criterion of level 5.
        version: Unix time of creation; the newest version is in force.
        line: Points (60-minute rain, soil water index) of the critical line, level
            4; empty uses the planning default.
    """

    advisory_mm: float | None
    warning_mm: float | None
    special_mm: float | None
    version: float
    line: tuple[tuple[float, float], ...] | None = ()

    def __post_init__(self) -> None:
        """Reject criteria out of order or range."""
        limits = (self.advisory_mm, self.warning_mm, self.special_mm)
        judged = [mm for mm in limits if mm is not None]
        is_within = all(MIN_CRITERION_MM <= mm <= MAX_CRITERION_MM for mm in judged)
        if not is_within or judged != sorted(judged):
            low, high = f"{MIN_CRITERION_MM:g}", f"{MAX_CRITERION_MM:g}"
            rule = f"{low} <= advisory_mm <= warning_mm <= special_mm <= {high}"
            raise ValueError(f"criteria must be {rule}, got {limits}")
        if not 0 <= self.version <= MAX_TIME_S:
            raise ValueError(f"version must be Unix seconds, got {self.version:g}")


class AreaMessage(msgspec.Struct, frozen=True):
    """A message for an area, in JSON.

    Attributes:
        error: Raised for a payload that does not parse.
    """

    error: ClassVar[type[FieldError]] = NoticeError

    def encode(self) -> bytes:
        """Encode as JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Decode a message of this form.

        Raises:
            FieldError: The payload does not parse; of the class `error`.
        """
        name, size = cls.__name__.lower(), len(payload)
        if size > MAX_NOTICE_BYTES:
            raise cls.error(name, f"at most {MAX_NOTICE_BYTES} bytes", f"{size} bytes")
        try:
            return decode_json(payload, cls)
        except DECODE_ERRORS as cause:
            raise cls.error(name, f"JSON of its form ({cause})", payload) from cause


class Notice(AreaMessage, frozen=True, omit_defaults=True):
    """A level or new criteria for an area.

    Attributes:
        level: Level set by an analyst; from 3 on, nodes sample more often.
        until_s: Unix time at which the level expires.
        criteria: New criteria for the nodes in the area.
        at_s: Unix time of creation; the newest notice of an area is in force. 0 for
            one written by hand.
        withdrawn: Cancels the earlier notice. Where notices must be signed, this is
            the only way: an empty payload has no signature.
        state: `judged`; `held` while the evidence for the level is missing. Nodes of
            earlier versions ignore this and the following.
        known_until_s: Unix time of the last judgement, where it is held.
        doubts: Codes of reasons that restrict the level: assumed criteria, evidence of
            one sensor only, rain from elsewhere; see
            `slope_science.reason_codes.RESTRICTIONS`.
    """

    level: int = 1
    until_s: float = 0.0
    criteria: CriteriaNotice | None = None
    at_s: float = 0.0
    withdrawn: bool = False
    state: str = "judged"
    known_until_s: float = 0.0
    doubts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Reject levels off the ladder, times out of range and contradictions."""
        LADDER.check(self.level)
        latest = {"at_s": MAX_TIME_S, "known_until_s": MAX_TIME_S, "until_s": MAX_END_S}
        for name, latest_s in latest.items():
            if not 0 <= getattr(self, name) <= latest_s:
                rule = f"{name} must be Unix seconds"
                raise ValueError(f"{rule}, got {getattr(self, name):g}")
        if self.withdrawn and (self.level > 1 or self.criteria is not None):
            raise ValueError("withdrawn must come without level and criteria")


MAX_DRILL_S: Final = 900.0
"""Longest drill: people must not get used to an alarm that goes on."""


class Drill(AreaMessage, frozen=True, forbid_unknown_fields=True):
    """A drill of the alarm outputs of an area.

    It has a topic of its own (`topics.drill_topic`), so that it never takes the place
    of a notice, and programs of earlier versions never take it for one.

    Attributes:
        level: Outputs from this level on take part.
        until_s: Unix time of its end, at most `MAX_DRILL_S` after `at_s`.
        at_s: Unix time of creation; the newest drill of an area is in force.
        withdrawn: Ends the earlier drill; the level is then 1, as in a notice.
        drill: Always true, so that the text of the message says what it is.
    """

    level: int
    until_s: float
    at_s: float
    withdrawn: bool = False
    drill: bool = True

    def __post_init__(self) -> None:
        """Reject levels off the ladder and times out of range."""
        LADDER.check(self.level)
        if not self.drill:
            raise ValueError("drill must be true")
        if self.withdrawn and self.level > 1:
            raise ValueError("withdrawn must come without level")
        if not 0 < self.at_s <= MAX_TIME_S:
            raise ValueError(f"at_s must be Unix seconds, got {self.at_s:g}")
        if not self.at_s <= self.until_s <= self.at_s + MAX_DRILL_S:
            rule = f"until_s must be at most {MAX_DRILL_S:g} s after at_s"
            raise ValueError(f"{rule}, got {self.until_s - self.at_s:g} s")


class SignedNotice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A notice, drill or rollout with its signature.

    Attributes:
        body: JSON of the message.
        signature: Ed25519 signature in base64.
    """

    body: str
    signature: str


def read_notice_time_s(payload: bytes) -> float:
    """Read `at_s` of a notice without verifying it; 0 if it does not parse."""
    try:
        body = decode_json(payload, SignedNotice).body.encode()
    except DECODE_ERRORS:
        body = payload
    try:
        return Notice.decode(body).at_s
    except NoticeError:
        return 0.0


MAX_BUNDLE_BYTES: Final = 1 << 29
SHA256_DIGITS: Final = 64


class Rollout(AreaMessage, frozen=True, forbid_unknown_fields=True):
    """A version for the nodes of an area.

    Attributes:
        version: Version name of the image.
        sha256: SHA-256 of the bundle, in hexadecimal digits.
        size_bytes: Size of the bundle.
        at_s: Unix time of creation; the newest rollout of an area is in force.
        role: Role of the machines that the image is for.
        percent: Share of the nodes that install it; a larger share later includes
            the same nodes.
        withdrawn: Nodes that have not started the update do not start it.
    """

    error: ClassVar[type[FieldError]] = RolloutError
    version: str
    sha256: str
    size_bytes: int
    at_s: float
    role: str = "node"
    percent: float = 100.0
    withdrawn: bool = False

    def __post_init__(self) -> None:
        """Reject values out of range."""
        digits = set(self.sha256)
        if len(self.sha256) != SHA256_DIGITS or not digits <= set("0123456789abcdef"):
            raise ValueError(f"sha256 must be 64 of 0-9 a-f, got {self.sha256!r}")
        if not 0 < self.size_bytes <= MAX_BUNDLE_BYTES:
            rule = f"1 to {MAX_BUNDLE_BYTES}"
            raise ValueError(f"size_bytes must be {rule}, got {self.size_bytes}")
        if not 0 <= self.percent <= 100:  # noqa: PLR2004 - a percentage
            raise ValueError(f"percent must be 0 to 100, got {self.percent:g}")
        if not 0 < self.at_s <= MAX_TIME_S:
            raise ValueError(f"at_s must be Unix seconds, got {self.at_s:g}")

    def includes_node(self, node: str) -> bool:
        """Whether a node is in the share: by a hash, so the answer never changes.

        Each bundle starts with other nodes.
        """
        digest = blake2b(f"{self.sha256} {node}".encode(), digest_size=4).digest()
        return int.from_bytes(digest) < self.percent / 100 * 2**32


FILE_CHUNK_BYTES: Final = 4096
"""One second at 30 kbps, which a chunk can delay other messages to the node."""

MAX_FILE_CHUNK_BYTES: Final = 65_536


class FileMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message of a transfer, in MessagePack.

    Attributes:
        title: Its name in errors.
    """

    title: ClassVar[str]

    def encode(self) -> bytes:
        """Encode for the wire."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Decode a message of this form.

        Raises:
            FileChunkError: The payload does not parse.
        """
        try:
            return decode_msgpack(payload, cls)
        except DECODE_ERRORS as error:
            rule = f"a {cls.title} ({error})"
            raise FileChunkError("payload", rule, payload) from error


class FileChunkRequest(FileMessage, frozen=True):
    """Request for a chunk.

    Attributes:
        sha256: SHA-256 of the file in hexadecimal digits.
        at: Offset of the first byte.
        size_bytes: Number of bytes; the last chunk of a file may be shorter.
    """

    title: ClassVar[str] = "chunk request"
    sha256: str
    at: int
    size_bytes: int = FILE_CHUNK_BYTES

    def __post_init__(self) -> None:
        """Reject an offset or a size out of range."""
        is_size = 0 < self.size_bytes <= MAX_FILE_CHUNK_BYTES
        if not (is_size and 0 <= self.at <= MAX_BUNDLE_BYTES):
            rule = f"1 to {MAX_FILE_CHUNK_BYTES} bytes at 0 to {MAX_BUNDLE_BYTES}"
            got = f"{self.size_bytes} at {self.at}"
            raise ValueError(f"a chunk request must be {rule}, got {got}")


class FileChunk(FileMessage, frozen=True):
    """A chunk of a file.

    Attributes:
        sha256: SHA-256 of the file in hexadecimal digits.
        at: Offset of the first byte.
        data: The bytes; empty if the server does not have the file.
    """

    title: ClassVar[str] = "chunk"
    sha256: str
    at: int
    data: bytes


class NoticeSigner:
    """Signs with one private key.

    Args:
        path: PEM file of the key.

    Raises:
        FieldError: The file cannot be read, or holds no private Ed25519 key.
    """

    def __init__(self, path: str | Path) -> None:
        from cryptography.hazmat.primitives import (  # noqa: PLC0415
            serialization as pem,
        )
        from cryptography.hazmat.primitives.asymmetric import (  # noqa: PLC0415
            ed25519,
        )

        rule = "a PEM file of a private Ed25519 key"
        try:
            key = pem.load_pem_private_key(Path(path).read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise FieldError("key", rule, str(path), str(error)) from error
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise FieldError("key", rule, str(path))
        self._key = key

    def sign(self, topic: str, body: bytes) -> bytes:
        """Sign the JSON of a notice for a topic."""
        signature = self._key.sign(_signed_bytes(topic, body))
        return msgspec.json.encode(
            SignedNotice(body.decode(), base64.b64encode(signature).decode())
        )


class NoticeVerifier:
    """Verifies signatures with a set of public keys.

    Args:
        paths: PEM files of the keys; several, so that one can replace another.

    Raises:
        FieldError: A file cannot be read, or holds no public Ed25519 key.
    """

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self._keys = [_load_public_key(path) for path in paths]

    def verify(self, topic: str, payload: bytes) -> bytes:
        """Verify a signed notice of a topic, and return its JSON.

        Raises:
            NoticeError: No key verifies the signature.
        """
        remedy = (
            "publish it with backend-spark notify, with the key of this node's area"
        )
        try:
            signed = decode_json(payload, SignedNotice)
            signature = base64.b64decode(signed.signature, validate=True)
        except DECODE_ERRORS as error:
            raise NoticeError("notice", "signed", payload, remedy) from error
        body = signed.body.encode()
        if not any(
            _is_valid(key, signature, _signed_bytes(topic, body)) for key in self._keys
        ):
            rule = f"signed for {topic} with a key that this node knows"
            raise NoticeError("notice", rule, payload, remedy)
        return body


def _signed_bytes(topic: str, body: bytes) -> bytes:
    return topic.encode() + b"\n" + body


def _load_public_key(path: str | Path) -> "Ed25519PublicKey":
    from cryptography.hazmat.primitives import (  # noqa: PLC0415
        serialization as pem,
    )
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415

    rule = "a PEM file of a public Ed25519 key"
    try:
        key = pem.load_pem_public_key(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise FieldError("keys", rule, str(path), str(error)) from error
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise FieldError("keys", rule, str(path))
    return key


def _is_valid(key: "Ed25519PublicKey", signature: bytes, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415

    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True
