"""Signatures of notices: who may speak to the slope.

A signed notice is JSON ``{"body": "...", "signature": "..."}``: the notice as text,
and in base64 the Ed25519 signature of topic, line feed and text. The topic is part
of it, so that a notice for one place cannot be said of another.

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

from spatial_mqtt.errors import FieldError, NoticeError
from spatial_mqtt.notice import Signed


class Signer:
    """Signs with one private key.

    Args:
        path: Its PEM file.

    Raises:
        FieldError: It cannot be read, or is no private Ed25519 key.
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

    def seal(self, topic: str, body: bytes) -> bytes:
        """A notice's JSON as a signed one for a topic."""
        signature = self._key.sign(_message(topic, body))
        return msgspec.json.encode(
            Signed(body.decode(), base64.b64encode(signature).decode())
        )


class Verifier:
    """Knows whose notices count.

    Args:
        paths: PEM files of public keys; several, so that one can replace another.

    Raises:
        FieldError: One cannot be read, or is no public Ed25519 key.
    """

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self._keys = [_public(path) for path in paths]

    def opened(self, topic: str, payload: bytes) -> bytes:
        """The JSON of a notice that somebody with a key has signed for this topic.

        Raises:
            NoticeError: Nobody has.
        """
        remedy = (
            "publish it with backend-spark notify, with the key of this node's area"
        )
        try:
            signed = msgspec.json.decode(payload, type=Signed)
            signature = base64.b64decode(signed.signature, validate=True)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise NoticeError("notice", "signed", payload, remedy) from error
        body = signed.body.encode()
        if not any(_holds(key, signature, _message(topic, body)) for key in self._keys):
            rule = f"signed for {topic} with a key that this node knows"
            raise NoticeError("notice", rule, payload, remedy)
        return body


def _message(topic: str, body: bytes) -> bytes:
    return topic.encode() + b"\n" + body


def _public(path: str | Path) -> Ed25519PublicKey:
    rule = "a PEM file of a public Ed25519 key"
    try:
        key = serialization.load_pem_public_key(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise FieldError("keys", rule, str(path), str(error)) from error
    if not isinstance(key, Ed25519PublicKey):
        raise FieldError("keys", rule, str(path))
    return key


def _holds(key: Ed25519PublicKey, signature: bytes, message: bytes) -> bool:
    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True
