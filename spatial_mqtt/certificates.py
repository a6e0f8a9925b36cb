"""Certificates: the areas in one, and its renewal over MQTT by a client on a timer.

A broker refuses a publication outside the areas of its sender's certificate, and only
the sender's log names the refusal: the link itself works. A check therefore compares
the settings with the certificate.

For a renewal the client generates a key, which never leaves the machine, and sends a
request signed by both keys: by the new one to prove its possession, by the old one to
prove its identity. Request and answer are CBOR maps on `topics.renewal_topic` and
`topics.renewal_answer_topic`.

A certificate is renewed once, in the last third of its validity. The key is on disk
before the request is sent: after a lost answer the same request gets the same answer,
and a request with another key shows that the old key was copied.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import cbor2
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from service_runtime import tls
from service_runtime.errors import FieldError, TlsFileError
from service_runtime.files import write_atomic
from service_runtime.machine_check import MachineFinding, finding
from service_runtime.settings import build_settings, read_toml
from service_runtime.tls import (
    TPM_KEY_MARK,
    Endpoint,
    TlsFiles,
    read_certificate,
    select_certificate,
)
from spatial_mqtt.connection import Connection
from spatial_mqtt.errors import BrokerError, RenewalError
from spatial_mqtt.hardware_key import TpmKey
from spatial_mqtt.senml import CborError, decode_cbor
from spatial_mqtt.topics import covers, renewal_answer_topic, renewal_topic
from spatial_mqtt.transport import (
    BaseConnectionHandler,
    IncomingMessage,
    Publication,
    Session,
)

CELL_URN: Final = "urn:yamamori:cell:"
"""An area in the subject alternative name of a certificate, before its topic."""


def read_certificate_areas(certificate: x509.Certificate) -> list[str]:
    """Areas of a certificate; empty without any, as of another authority."""
    try:
        names = certificate.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
    except (x509.ExtensionNotFound, ValueError):  # the latter for a damaged one
        return []
    uris = names.value.get_values_for_type(x509.UniformResourceIdentifier)
    return [uri.removeprefix(CELL_URN) for uri in uris if uri.startswith(CELL_URN)]


def check_certificate_areas(
    files: TlsFiles, setting: str, areas: Iterable[str]
) -> Iterator[MachineFinding]:
    """Check that our certificate contains given areas; nothing if it does.

    Files that cannot be used are left to `check_tls_files`.

    Args:
        files: Our certificates. One without areas permits all.
        setting: Key of the areas.
        areas: Where we publish.
    """
    if not files.has_certificate:
        return
    try:
        path, _ = select_certificate(files)
        permitted = read_certificate_areas(read_certificate(path or ""))
    except TlsFileError:
        return
    for area in areas:
        if permitted and not any(covers(each, area) for each in permitted):
            rule = f"be inside the certificate {path} ({' '.join(permitted)})"
            remedy = (
                "issue it again with --cell, copy it here, and write the brokers' "
                "files; or correct the setting"
            )
            yield finding(setting, rule, area, remedy)


PublicKey = ec.EllipticCurvePublicKey

MAX_RENEWAL_BYTES = 16 * 1024
MAX_REASON_CHARS = 400
DER = serialization.Encoding.DER
_PROOF = ec.ECDSA(hashes.SHA256())


def verify_request(csr: x509.CertificateSigningRequest) -> PublicKey:
    """Return the public key of a signing request, after checking its signature.

    Raises:
        RenewalError: The key is not on P-256, or the signature is wrong.
    """
    key = csr.public_key()
    if not isinstance(key, PublicKey):
        raise RenewalError("key", "of an elliptic curve", type(key).__name__)
    if not isinstance(key.curve, ec.SECP256R1):
        raise RenewalError("key", "on the curve P-256", key.curve.name)
    if not csr.is_signature_valid:
        raise RenewalError("signing request", "signed by its key", "another one")
    return key


def renewal_due_s(certificate: x509.Certificate) -> float:
    """Unix time at which two thirds of a certificate's validity are over."""
    start_s = certificate.not_valid_before_utc.timestamp()
    end_s = certificate.not_valid_after_utc.timestamp()
    return start_s + (end_s - start_s) * 2 / 3


@dataclass(frozen=True)
class CertificateWithKey:
    """A certificate and its private key.

    Attributes:
        certificate: The certificate.
        key: Its private key.
        issuer: Certificate of the issuing authority; None if it is the root.
    """

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    issuer: x509.Certificate | None = None

    @classmethod
    def load(cls, certificate: bytes, key: bytes) -> Self:
        """Load both from PEM, which may be the same file.

        Raises:
            RenewalError: They do not parse, or the key has another algorithm.
            TpmError: The key is in a TPM, which cannot be used.
        """
        try:
            loaded = x509.load_pem_x509_certificate(certificate)
        except ValueError as error:
            rule = f"PEM ({error})"
            raise RenewalError("certificate", rule, "another file") from error
        return cls(loaded, decode_private_key(key))

    def to_pem(self) -> bytes:
        """All as one PEM file."""
        chain = [self.certificate, *([self.issuer] if self.issuer else [])]
        certificates = b"".join(
            each.public_bytes(serialization.Encoding.PEM) for each in chain
        )
        return certificates + encode_private_key(self.key)


@dataclass(frozen=True)
class RenewalRequest:
    """Request for a new certificate.

    Attributes:
        csr: Signing request (PKCS 10) of the new key.
        certificate: The certificate that is still valid.
        signature: Signature of the old key over the signing request.
    """

    csr: x509.CertificateSigningRequest
    certificate: x509.Certificate
    signature: bytes

    @classmethod
    def create(cls, held: CertificateWithKey, key: ec.EllipticCurvePrivateKey) -> Self:
        """Create a request for a certificate for a new key."""
        builder = x509.CertificateSigningRequestBuilder(held.certificate.subject)
        asked = builder.sign(key, hashes.SHA256())
        return cls(
            asked, held.certificate, held.key.sign(asked.public_bytes(DER), _PROOF)
        )

    @property
    def verified_key(self) -> PublicKey:
        """The new public key, after checking both signatures.

        Raises:
            RenewalError: The key is not on P-256, or a signature is wrong.
        """
        new, old = verify_request(self.csr), self.certificate.public_key()
        if not isinstance(old, PublicKey):
            raise RenewalError("key", "of an elliptic curve", type(old).__name__)
        try:
            old.verify(self.signature, self.csr.public_bytes(DER), _PROOF)
        except InvalidSignature as error:
            rule = "of the certificate's key"
            raise RenewalError("signature", rule, "another one") from error
        return new

    def encode(self) -> bytes:
        """Encode for the wire."""
        return cbor2.dumps({
            "asked": self.csr.public_bytes(DER),
            "old": self.certificate.public_bytes(DER),
            "signature": self.signature,
        })

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Decode a request without checking its signatures.

        Raises:
            RenewalError: The payload does not parse.
        """
        fields = _map(payload)
        asked, old, signature = (
            _bytes(fields, name) for name in ("asked", "old", "signature")
        )
        try:
            return cls(
                x509.load_der_x509_csr(asked),
                x509.load_der_x509_certificate(old),
                signature,
            )
        except (ValueError, TypeError, x509.InvalidVersion) as error:
            rule = f"a signing request and a certificate in DER ({error})"
            raise RenewalError("renewal", rule, payload) from error


@dataclass(frozen=True)
class RenewalAnswer:
    """Answer of the signer: a certificate as DER, or the reason of a refusal.

    Attributes:
        certificate: The new certificate.
        refused: Why there is none.
        chain: Certificate of the issuing authority as DER; empty if it is the root.
    """

    certificate: bytes = b""
    refused: str = ""
    chain: bytes = b""

    def encode(self) -> bytes:
        """Encode for the wire."""
        return cbor2.dumps(vars(self))

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Decode an answer.

        Raises:
            RenewalError: The payload does not parse.
        """
        fields = _map(payload)
        refused = fields.get("refused", "")
        if not isinstance(refused, str):
            raise RenewalError("refused", "text", refused)
        chain = _bytes({"chain": b"", **fields}, "chain")
        return cls(_bytes(fields, "certificate"), refused, chain)

    def match_key(self, key: ec.EllipticCurvePrivateKey) -> CertificateWithKey:
        """Return the certificate with its key.

        Raises:
            RenewalError: The request was refused, or the key is another one.
        """
        if self.refused:
            reason = self.refused[:MAX_REASON_CHARS]
            raise RenewalError("request", "accepted by the signer", "refusal", reason)
        try:
            certificate = x509.load_der_x509_certificate(self.certificate)
            issuer = x509.load_der_x509_certificate(self.chain) if self.chain else None
        except ValueError as error:
            raise RenewalError(
                "certificate", f"DER ({error})", "other bytes"
            ) from error
        if certificate.public_key() != key.public_key():
            raise RenewalError("certificate", "for the key we made", "another one")
        return CertificateWithKey(certificate, key, issuer)


def _map(payload: bytes) -> Mapping[str, Any]:
    if len(payload) > MAX_RENEWAL_BYTES:
        raise RenewalError(
            "renewal", f"at most {MAX_RENEWAL_BYTES} bytes", len(payload)
        )
    try:
        fields = decode_cbor(payload)
    except CborError as error:
        raise RenewalError("renewal", f"CBOR ({error})", payload) from error
    if not isinstance(fields, dict):
        raise RenewalError("renewal", "a map", fields)
    return fields


def _bytes(fields: Mapping[str, Any], name: str) -> bytes:
    value = fields.get(name)
    if not isinstance(value, bytes):
        raise RenewalError(name, "bytes", value)
    return value


TIMEOUT_S = 20.0
REQUESTED_KEY_SUFFIX = ".requested.key"
"""Beside the renewed certificate: the key of a request without an answer."""

SECRET_FILE_MODE = 0o600
CREDENTIALS_FOLDER = "/run/credentials/"


def read_tls_settings(path: Path, credentials: Path | None = None) -> TlsFiles:
    """Read the ``[tls]`` section of any program's settings.

    Args:
        path: Settings file.
        credentials: Credentials folder of this unit; replaces the folder of files
            that the settings have among the credentials of another unit.

    Raises:
        SettingsError: The settings have mistakes.
        OSError: The file cannot be read.
    """
    table = read_toml(path).get("tls", {})
    files = build_settings(TlsFiles, table, "tls")
    if credentials is None:
        return files
    moved: dict[str, Any] = {
        name: str(credentials / Path(file).name)
        for name in ("ca", "certificate", "key")
        if (file := getattr(files, name)) and file.startswith(CREDENTIALS_FOLDER)
    }
    return replace(files, **moved)


def renew_if_due(files: TlsFiles, now_s: float, *, is_forced: bool = False) -> str:
    """Renew a certificate if two thirds of its validity are over; report the result.

    Args:
        files: Settings of the program.
        now_s: Unix time.
        is_forced: Whether to ask the signer, whose clock decides, in any case.

    Raises:
        FieldError: The settings name a signer and no file, the signer refuses, or the
            new certificate is not valid yet; if forced, also if they name no signer.
        TlsFileError: The file has another name's certificate, which is still valid.
        BrokerError: The signer is not reachable.
        OSError: A file cannot be read or written.
    """
    if files.signer is None and not is_forced:
        return "not renewed: the settings name no tls.signer"
    if files.signer is None or files.renewed is None:
        missing = "signer" if files.signer is None else "renewed"
        raise FieldError(
            f"tls.{missing}", "given, for a certificate to be renewed", None
        )
    current = _load_current(files)
    ends = current.certificate.not_valid_after_utc
    if not is_forced and now_s < renewal_due_s(current.certificate):
        return f"not due: the certificate counts until {ends:%Y-%m-%d %H:%M} UTC"
    _check_overwritten(files.renewed, current.certificate, now_s)
    requested = Path(files.renewed + REQUESTED_KEY_SUFFIX)
    key = _requested_key(requested, current, is_in_tpm=files.tpm)
    answer = _send_request(
        Endpoint.parse(files.signer), files, RenewalRequest.create(current, key)
    )
    new = answer.match_key(key)
    _check_begun(new.certificate, now_s)
    for path in (files.renewed + tls.COPY_SUFFIX, files.renewed):
        write_atomic(Path(path), new.to_pem(), SECRET_FILE_MODE)
    requested.unlink()
    ends = new.certificate.not_valid_after_utc
    return (
        f"renewed: counts until {ends:%Y-%m-%d %H:%M} UTC, from the next connection on"
    )


def _check_begun(certificate: x509.Certificate, now_s: float) -> None:
    """Refuse what brokers do not accept yet: it would replace a valid certificate."""
    begins = certificate.not_valid_before_utc
    if begins.timestamp() > now_s:
        raise RenewalError(
            "certificate",
            "valid already",
            f"one from {begins:%Y-%m-%d %H:%M} UTC on",
            "the signer's clock is ahead, or ours is behind (see `timedatectl`); "
            "a later request gets the same certificate",
        )


def _check_overwritten(path: str, ours: x509.Certificate, now_s: float) -> None:
    """Keep the only key of another program that renews into the same file."""
    try:
        there = tls.read_certificate(path)
    except TlsFileError:
        return  # none yet, or damaged
    if now_s < there.not_valid_after_utc.timestamp():
        tls.check_same_name(path, there, ours)


def _requested_key(
    path: Path, current: CertificateWithKey, *, is_in_tpm: bool
) -> ec.EllipticCurvePrivateKey:
    """The key of the request without an answer, else a new one, which is stored."""
    with suppress(FileNotFoundError, RenewalError):
        stored = decode_private_key(path.read_bytes())
        if stored.public_key() != current.certificate.public_key():
            return stored
    key = generate_private_key(is_in_tpm=is_in_tpm)
    write_atomic(path, encode_private_key(key), SECRET_FILE_MODE)
    return key


def generate_private_key(*, is_in_tpm: bool) -> ec.EllipticCurvePrivateKey:
    """Make a key of P-256.

    Raises:
        TpmError: It is to be in the TPM, which cannot be used.
    """
    return TpmKey.generate() if is_in_tpm else ec.generate_private_key(ec.SECP256R1())


def decode_private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Decode a private key, of a file or of this machine's TPM.

    Raises:
        RenewalError: It does not parse, has a password, or is of another algorithm.
        TpmError: It is in a TPM, which cannot be used.
    """
    if TPM_KEY_MARK in pem:
        return TpmKey(pem)
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError) as error:
        rule = f"PEM without a password ({error})"
        raise RenewalError("key", rule, "another file") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise RenewalError("key", "of an elliptic curve", type(key).__name__)
    return key


def encode_private_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key as PEM without a password."""
    if isinstance(key, TpmKey):
        return key.pem
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _load_current(files: TlsFiles) -> CertificateWithKey:
    found = tls.find_certificates(files)
    errors: list[Exception] = list(found.errors)
    for pair in found.usable:
        try:
            return _load_pair(*pair)
        except RenewalError as error:
            errors.append(error)
    raise errors[0]


def _load_pair(certificate: str | None, key: str | None) -> CertificateWithKey:
    if certificate is None:
        raise FieldError("tls.certificate", "given, for it to be renewed", None)
    pem = Path(certificate).read_bytes()
    return CertificateWithKey.load(pem, Path(key).read_bytes() if key else pem)


def _send_request(
    signer: Endpoint, files: TlsFiles, request: RenewalRequest
) -> RenewalAnswer:
    (named,) = request.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    name = str(named.value)
    handler = _RenewalHandler(Publication(renewal_topic(name), request.encode()))
    session = Session(
        f"{name}-asks", ((renewal_answer_topic(name), 1),), keepalive_s=10
    )
    connection = Connection(signer, session, handler, files)
    handler.publish = connection.publish
    connection.start()
    try:
        if not handler.is_answered.wait(TIMEOUT_S):
            reason = handler.refused or connection.last_reason or "no answer"
            raise BrokerError(str(signer), f"{reason} within {TIMEOUT_S:g} s")
    finally:
        connection.stop()
    if handler.answer is None:
        raise RenewalError("answer", "a certificate", handler.refused)
    return handler.answer


class _RenewalHandler(BaseConnectionHandler):
    """Sends the request once subscribed, and stores the answer."""

    def __init__(self, request: Publication) -> None:
        self.is_answered = threading.Event()
        self.answer: RenewalAnswer | None = None
        self.refused: str | None = None
        self.publish: Callable[[Publication], object] = lambda _: None
        self._request = request

    def on_subscribed(self) -> None:
        self.publish(self._request)

    def on_published(self, token: int, refused: str | None) -> None:
        self.refused = refused

    def on_message(self, message: IncomingMessage) -> None:
        try:
            self.answer = RenewalAnswer.decode(message.payload)
        except RenewalError as error:
            self.refused = str(error)
        self.is_answered.set()
