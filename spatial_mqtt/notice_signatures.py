"""Ed25519 signatures of notices and rollouts. No I/O but key files.

A signed notice or rollout is JSON ``{"body": "...", "signature": "..."}``: the message
as text, and in base64 the Ed25519 signature of topic, line feed and text. The topic is
signed too, so that a notice for one area is not valid for another.

A program imports this module only where keys are set: cryptography takes 10 MB.

Source: RFC 8032. Keys are PEM files, as ``openssl genpkey -algorithm ed25519`` and
``openssl pkey -pubout`` write them.
"""

import base64
from collections.abc import Sequence
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from service_runtime.decoding import DECODE_ERRORS, decode_json
from service_runtime.errors import FieldError
from spatial_mqtt.announcements import SignedNotice
from spatial_mqtt.errors import NoticeError


class NoticeSigner:
    """Signs with one private key.

    Args:
        path: PEM file of the key.

    Raises:
        FieldError: The file cannot be read, or holds no private Ed25519 key.
    """

    def __init__(self, path: str | Path) -> None:
        rule = "a PEM file of a private Ed25519 key"
        try:
            key = serialization.load_pem_private_key(Path(path).read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise FieldError("key", rule, str(path), str(error)) from error
        if not isinstance(key, Ed25519PrivateKey):
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


def _load_public_key(path: str | Path) -> Ed25519PublicKey:
    rule = "a PEM file of a public Ed25519 key"
    try:
        key = serialization.load_pem_public_key(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise FieldError("keys", rule, str(path), str(error)) from error
    if not isinstance(key, Ed25519PublicKey):
        raise FieldError("keys", rule, str(path))
    return key


def _is_valid(key: Ed25519PublicKey, signature: bytes, message: bytes) -> bool:
    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True
