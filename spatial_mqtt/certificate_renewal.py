"""Asks for a new certificate and keeps it: what a timer runs on every machine.

A new certificate before the old one ends, without a visit: what is asked and told.

The holder makes a new key, which never leaves it, and asks with a request that both
its keys have signed: the new one as proof that it is there, the old one as proof of
who asks. Request and answer are CBOR maps on `topics.renewal_topic` and
`topics.renewed_topic`.
"""

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import cbor2
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from service_runtime import tls
from service_runtime.errors import FieldError
from service_runtime.settings import parse, read, text_of
from service_runtime.tls import Endpoint, TlsFiles
from spatial_mqtt.connection import Connection
from spatial_mqtt.errors import BrokerError, RenewalError
from spatial_mqtt.topics import renewal_topic, renewed_topic
from spatial_mqtt.transport import Incoming, Publication, Session

PublicKey = ec.EllipticCurvePublicKey

MOST_BYTES = 16 * 1024
DER = serialization.Encoding.DER
_PROOF = ec.ECDSA(hashes.SHA256())


@dataclass(frozen=True)
class Held:
    """A certificate and its key, as their holder has them."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def load(cls, certificate: bytes, key: bytes) -> Self:
        """From PEM; both may be in one file.

        Raises:
            RenewalError: They are not, or the key is of another kind.
        """
        try:
            loaded = serialization.load_pem_private_key(key, None)
            made = x509.load_pem_x509_certificate(certificate)
        except (ValueError, TypeError) as error:
            rule = f"PEM without a password ({error})"
            raise RenewalError("certificate and key", rule, "another file") from error
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise RenewalError("key", "of an elliptic curve", type(loaded).__name__)
        return cls(made, loaded)

    def is_due(self, now_s: float) -> bool:
        """Whether two thirds of the certificate's life are over."""
        start_s = self.certificate.not_valid_before_utc.timestamp()
        end_s = self.certificate.not_valid_after_utc.timestamp()
        return now_s >= start_s + (end_s - start_s) * 2 / 3

    def pem(self) -> bytes:
        """Both in one file."""
        pem = serialization.Encoding.PEM
        return self.certificate.public_bytes(pem) + self.key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


@dataclass(frozen=True)
class Request:
    """A wish for a new certificate.

    Attributes:
        asked: Signing request (PKCS 10) of the new key.
        old: The certificate that still counts.
        signature: Of the old key, over the signing request.
    """

    asked: x509.CertificateSigningRequest
    old: x509.Certificate
    signature: bytes

    @classmethod
    def of(cls, held: Held, key: ec.EllipticCurvePrivateKey) -> Self:
        """The wish of a holder for a certificate for another key."""
        builder = x509.CertificateSigningRequestBuilder(held.certificate.subject)
        asked = builder.sign(key, hashes.SHA256())
        return cls(
            asked, held.certificate, held.key.sign(asked.public_bytes(DER), _PROOF)
        )

    @property
    def key(self) -> PublicKey:
        """The new public key.

        Raises:
            RenewalError: It is of another kind, or one of the two proofs is none.
        """
        new, old = self.asked.public_key(), self.old.public_key()
        if not isinstance(new, PublicKey) or not isinstance(old, PublicKey):
            raise RenewalError("key", "of an elliptic curve", type(new).__name__)
        if not isinstance(new.curve, ec.SECP256R1):
            raise RenewalError("key", "on the curve P-256", new.curve.name)
        try:
            old.verify(self.signature, self.asked.public_bytes(DER), _PROOF)
        except InvalidSignature as error:
            rule = "of the certificate's key"
            raise RenewalError("signature", rule, "another one") from error
        if not self.asked.is_signature_valid:
            raise RenewalError("signing request", "signed by its key", "another one")
        return new

    def encode(self) -> bytes:
        """Encode for the wire."""
        return cbor2.dumps({
            "asked": self.asked.public_bytes(DER),
            "old": self.old.public_bytes(DER),
            "signature": self.signature,
        })

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Decode a request; whether it is right is not looked at.

        Raises:
            RenewalError: It is none.
        """
        told = _map(payload)
        asked, old, signature = (
            _bytes(told, name) for name in ("asked", "old", "signature")
        )
        try:
            return cls(
                x509.load_der_x509_csr(asked),
                x509.load_der_x509_certificate(old),
                signature,
            )
        except (ValueError, TypeError) as error:
            rule = f"a signing request and a certificate in DER ({error})"
            raise RenewalError("renewal", rule, payload) from error


@dataclass(frozen=True)
class Answer:
    """What the signer says: a certificate as DER, or why there is none."""

    certificate: bytes = b""
    refused: str = ""

    def encode(self) -> bytes:
        """Encode for the wire."""
        return cbor2.dumps({"certificate": self.certificate, "refused": self.refused})

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Decode an answer.

        Raises:
            RenewalError: It is none.
        """
        told = _map(payload)
        refused = told.get("refused", "")
        if not isinstance(refused, str):
            raise RenewalError("refused", "text", refused)
        return cls(_bytes(told, "certificate"), refused)

    def for_key(self, key: ec.EllipticCurvePrivateKey) -> Held:
        """The new certificate, with the key it was asked for.

        Raises:
            RenewalError: It was refused, or it is for another key.
        """
        if self.refused:
            raise RenewalError("certificate", "given", self.refused)
        try:
            made = x509.load_der_x509_certificate(self.certificate)
        except ValueError as error:
            raise RenewalError(
                "certificate", f"DER ({error})", "other bytes"
            ) from error
        if made.public_key() != key.public_key():
            raise RenewalError("certificate", "for the key we made", "another one")
        return Held(made, key)


def _map(payload: bytes) -> Mapping[str, Any]:
    if len(payload) > MOST_BYTES:
        raise RenewalError("renewal", f"at most {MOST_BYTES} bytes", len(payload))
    try:
        told = cbor2.loads(payload)
    except (cbor2.CBORDecodeError, RecursionError) as error:
        raise RenewalError("renewal", f"CBOR ({error})", payload) from error
    if not isinstance(told, dict):
        raise RenewalError("renewal", "a map", told)
    return told


def _bytes(told: Mapping[str, Any], name: str) -> bytes:
    value = told.get(name)
    if not isinstance(value, bytes):
        raise RenewalError(name, "bytes", value)
    return value


TIMEOUT_S = 20.0
SECRET = 0o600
CREDENTIALS = "/run/credentials/"


def tls_of(path: Path, credentials: Path | None = None) -> TlsFiles:
    """The ``[tls]`` of any program's settings.

    Args:
        path: The settings.
        credentials: Folder of our unit's credentials; files that the settings have
            among another unit's are looked for there.

    Raises:
        SettingsError: It has mistakes.
        OSError: The file cannot be read.
    """
    table = parse(text_of(path)).get("tls", {})
    files = read(TlsFiles, table, "tls")
    if credentials is None:
        return files
    ours = {
        name: str(credentials / Path(file).name)
        for name in ("ca", "certificate", "key")
        if (file := getattr(files, name)) and file.startswith(CREDENTIALS)
    }
    return replace(files, **ours)


def renew(files: TlsFiles, now_s: float, *, is_forced: bool = False) -> str:
    """Renew a certificate when two thirds of its life are over; what was done.

    Raises:
        FieldError: The settings name no signer or no file, or the signer refuses.
        BrokerError: The signer is out of reach.
        OSError: A file cannot be read or written.
    """
    if files.signer is None or files.renewed is None:
        missing = "signer" if files.signer is None else "renewed"
        raise FieldError(
            f"tls.{missing}", "given, for a certificate to be renewed", None
        )
    held = _held(files)
    ends = held.certificate.not_valid_after_utc
    if not is_forced and not held.is_due(now_s):
        return f"not due: the certificate counts until {ends:%Y-%m-%d %H:%M} UTC"
    key = ec.generate_private_key(ec.SECP256R1())
    answer = _ask(Endpoint.parse(files.signer), files, Request.of(held, key))
    new = answer.for_key(key)
    _keep(Path(files.renewed), new.pem())
    ends = new.certificate.not_valid_after_utc
    return (
        f"renewed: counts until {ends:%Y-%m-%d %H:%M} UTC, from the next connection on"
    )


def _held(files: TlsFiles) -> Held:
    certificate, key = tls.own_files(files)
    if certificate is None:
        raise FieldError("tls.certificate", "given, for it to be renewed", None)
    pem = Path(certificate).read_bytes()
    return Held.load(pem, Path(key).read_bytes() if key else pem)


def _keep(path: Path, pem: bytes) -> None:
    """Replace a file whole; nobody else ever reads it."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, SECRET)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
        file.flush()
        os.fsync(descriptor)
    fresh.replace(path)


def _ask(signer: Endpoint, files: TlsFiles, request: Request) -> Answer:
    (named,) = request.old.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    name = str(named.value)
    asker = _Asker(Publication(renewal_topic(name), request.encode()))
    session = Session(f"{name}-asks", ((renewed_topic(name), 1),), keepalive_s=10)
    connection = Connection(signer, session, asker, files)
    asker.say = connection.publish
    connection.start()
    try:
        if not asker.is_answered.wait(TIMEOUT_S):
            said = asker.refused or connection.last_reason or "the signer says nothing"
            raise BrokerError(str(signer), f"{said} within {TIMEOUT_S:g} s")
    finally:
        connection.stop()
    if asker.answer is None:
        raise RenewalError("answer", "a certificate", asker.refused)
    return asker.answer


class _Asker:
    """Handler that asks once it listens, and keeps the answer."""

    def __init__(self, question: Publication) -> None:
        self.is_answered = threading.Event()
        self.answer: Answer | None = None
        self.refused: str | None = None
        self.say: Callable[[Publication], object] = lambda _: None
        self._question = question

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """See `ConnectionHandler`."""

    def on_subscribed(self) -> None:
        self.say(self._question)

    def on_down(self, reason: str) -> None:
        """See `ConnectionHandler`."""

    def on_published(self, token: int, refused: str | None) -> None:
        self.refused = refused

    def on_message(self, message: Incoming) -> None:
        try:
            self.answer = Answer.decode(message.payload)
        except RenewalError as error:
            self.refused = str(error)
        self.is_answered.set()
