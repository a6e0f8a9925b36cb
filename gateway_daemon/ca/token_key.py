"""Key of the issuing authority in a PKCS #11 token, which signs and keeps the key.

The file ``ca.key`` then has the URI of the key. Sources: PKCS #11 Cryptographic Token
Interface Current Mechanisms 2.40, section 2.3.6 (CKM_ECDSA); RFC 7512 for the URI.
"""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import unquote

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils

from gateway_daemon.ca.authority import AuthorityFileError
from spatial_mqtt.hardware_key import HardwareKey

SCHEME: Final = "pkcs11:"
PARTS: Final = ("token", "object", "module-path", "pin-source")
P256: Final = bytes.fromhex("06082a8648ce3d030107")
"""Object identifier of the curve, DER."""

COORDINATE_BYTES: Final = 32
OCTET_STRING: Final = b"\x04\x41"
"""DER header of a point of P-256, which most tokens put before it."""

_IN_USE: Final = threading.Lock()
"""A login counts for the whole process."""


@dataclass(frozen=True)
class TokenUri:
    """Where a key is.

    Attributes:
        text: The URI.
        token: Label of the token.
        label: Label of the key in the token.
        module: Library of the token's maker.
        pin_file: File whose first line is the user's PIN.
    """

    text: str
    token: str
    label: str
    module: str
    pin_file: Path

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a URI such as ``pkcs11:token=A;object=B?module-path=C&pin-source=D``.

        Raises:
            AuthorityFileError: It has another form.
        """
        path, _, query = text.removeprefix(SCHEME).partition("?")
        pairs = [each.partition("=") for each in (*path.split(";"), *query.split("&"))]
        found = {name: unquote(value) for name, _, value in pairs}
        if not text.startswith(SCHEME) or set(found) != set(PARTS):
            rule = "pkcs11:token=..;object=..?module-path=..&pin-source=/file"
            raise AuthorityFileError(f"the key's URI must be {rule}, got {text!r}")
        pin_file = Path(found["pin-source"].removeprefix("file:"))
        return cls(
            text, found["token"], found["object"], found["module-path"], pin_file
        )

    @contextmanager
    def session(self, *, writes: bool = False) -> Iterator[Any]:
        """Log in to the token.

        Raises:
            AuthorityFileError: The token cannot be used.
        """
        pkcs11 = _import_pkcs11()
        try:
            pin = self.pin_file.read_text(encoding="utf-8").split("\n")[0].strip()
            with _IN_USE:
                token = pkcs11.lib(self.module).get_token(token_label=self.token)
                with token.open(rw=writes, user_pin=pin) as session:
                    yield session
        except (pkcs11.PKCS11Error, OSError, RuntimeError, ValueError) as error:
            if isinstance(error, AuthorityFileError):
                raise
            cause = f"{type(error).__name__} {error}".strip()
            raise AuthorityFileError(
                f"the token of {self.text} cannot be used: {cause}; check module-path, "
                "token, object, and the PIN in pin-source"
            ) from error


class TokenKey(HardwareKey):
    """A private key of P-256 that a token keeps.

    Args:
        uri: Where it is.
        public: Its public key.
    """

    def __init__(self, uri: TokenUri, public: ec.EllipticCurvePublicKey) -> None:
        super().__init__(public)
        self.uri = uri

    @classmethod
    def generate(cls, text: str) -> Self:
        """Make a key in the token; it cannot be read out of it.

        Raises:
            AuthorityFileError: The token cannot be used, or has the object already.
        """
        pkcs11, uri = _import_pkcs11(), TokenUri.parse(text)
        with uri.session(writes=True) as session:
            label = {pkcs11.Attribute.LABEL: uri.label}
            if next(iter(session.get_objects(label)), None) is not None:
                raise AuthorityFileError(
                    f"object={uri.label} must be a new name in the token {uri.token}"
                )
            curve = {pkcs11.Attribute.EC_PARAMS: P256}
            session.create_domain_parameters(
                pkcs11.KeyType.EC, curve, local=True
            ).generate_keypair(
                store=True,
                label=uri.label,
                private_template={
                    pkcs11.Attribute.SENSITIVE: True,
                    pkcs11.Attribute.EXTRACTABLE: False,
                },
            )
        return cls.open(text)

    @classmethod
    def open(cls, text: str) -> Self:
        """Find a key.

        Raises:
            AuthorityFileError: The token cannot be used, or has no such key.
        """
        pkcs11, uri = _import_pkcs11(), TokenUri.parse(text)
        with uri.session() as session:
            found = session.get_key(pkcs11.ObjectClass.PUBLIC_KEY, label=uri.label)
            point = bytes(found[pkcs11.Attribute.EC_POINT])
        point = point.removeprefix(OCTET_STRING)
        try:
            public = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
        except ValueError as error:
            rule = "must be a key of P-256"
            raise AuthorityFileError(f"object={uri.label} {rule}: {error}") from error
        return cls(uri, public)

    def sign(
        self,
        data: bytes | bytearray | memoryview,
        signature_algorithm: ec.EllipticCurveSignatureAlgorithm,
    ) -> bytes:
        """Sign data in the token, by ECDSA with SHA-256.

        Raises:
            AuthorityFileError: The token cannot be used.
        """
        if not isinstance(signature_algorithm.algorithm, hashes.SHA256):
            raise AuthorityFileError("the authority signs with SHA-256 only")
        pkcs11 = _import_pkcs11()
        with self.uri.session() as session:
            key = session.get_key(pkcs11.ObjectClass.PRIVATE_KEY, label=self.uri.label)
            digest = hashlib.sha256(data).digest()
            made = bytes(key.sign(digest, mechanism=pkcs11.Mechanism.ECDSA))
        r, s = made[:COORDINATE_BYTES], made[COORDINATE_BYTES:]
        return utils.encode_dss_signature(int.from_bytes(r), int.from_bytes(s))


def _import_pkcs11() -> Any:  # noqa: ANN401 - an optional library
    try:
        import pkcs11  # noqa: PLC0415
    except ImportError as error:
        raise AuthorityFileError(
            'a key in a token needs python-pkcs11: pip install "yamamori[token]"'
        ) from error
    return pkcs11
