"""Mutually authenticated TLS: endpoints, files, contexts, and remedies for errors.

Files are read for each connection, so that a renewed certificate is in use from the
next connection on, without a restart.

A private key may be in a TPM 2.0, used by OpenSSL's provider ``tpm2`` (Debian:
``tpm2-openssl``). A file of such a key holds it encrypted by the TPM that made it, and
is of no use with another one. Source of the format: ASN.1 Specification for TPM 2.0 Key
Files.
"""

import ctypes
import ipaddress
import logging
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from service_runtime.errors import FieldError, TlsFileError, YamamoriError
from service_runtime.settings import KeyRule, key

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

log = logging.getLogger(__name__)

COPY_SUFFIX: Final = ".copy"
"""Beside the renewed certificate and its key: the same once more."""

CertificateFiles = tuple[str | None, str | None]
"""Files of a certificate and its key; without a second one both are in the first."""

DEFAULT_PORTS: Final = {"mqtt": 1883, "mqtts": 8883}


@dataclass(frozen=True, order=True)
class Endpoint:
    """Address of a broker.

    Attributes:
        host: Host name or IP address.
        port: TCP port.
        tls: Whether to use TLS.
    """

    host: str
    port: int
    tls: bool = False

    @classmethod
    def parse(cls, url: str) -> "Endpoint":
        """Parse ``mqtt://host:port`` or ``mqtts://host:port``.

        Raises:
            FieldError: The URL does not have this form.
        """
        rule = "mqtt://host:port or mqtts://host:port"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise FieldError("broker url", rule, url) from error
        host = parts.hostname
        unexpected = (
            parts.path.strip("/"),
            parts.query,
            parts.fragment,
            parts.username,
        )
        if parts.scheme not in DEFAULT_PORTS or port == 0 or any(unexpected):
            raise FieldError("broker url", rule, url)
        if not host:
            raise FieldError("broker url", rule, url)
        return cls(host, port or DEFAULT_PORTS[parts.scheme], parts.scheme == "mqtts")

    @property
    def is_loopback(self) -> bool:
        """Whether the host is this machine, by its address or as ``localhost``."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        """``host:port``, or ``[address]:port`` for IPv6."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True)
class TlsFiles:
    """Files of a mutually authenticated TLS link, as settings name them."""

    ca: str = key(
        KeyRule("File of the certificates that may sign the broker's."),
        "/etc/ssl/certs/ca-certificates.crt",
    )
    certificate: str | None = key(KeyRule("File of our own certificate."), None)
    renewed: str | None = key(
        KeyRule(
            "File where `spatial-mqtt renew` keeps a newer certificate and its key; "
            "used when it ends later than ours. Each program on a machine has its own."
        ),
        None,
    )
    signer: str | None = key(
        KeyRule(
            "Where certificates are renewed, mqtts://host:port of a Manager's broker.",
            check=lambda url: url is None or Endpoint.parse(url),
        ),
        None,
    )
    allow_plain_mqtt: bool = key(
        KeyRule(
            "Whether mqtt:// may leave this machine: everyone on the network can then "
            "read, change and forge messages. Right inside a VPN, or for a test."
        ),
        False,
    )
    tpm: bool = key(
        KeyRule(
            "Whether new keys are made in this machine's TPM 2.0; their files are then "
            "of no use without it."
        ),
        False,
    )
    key: str | None = key(KeyRule("File of its private key."), None)

    def __post_init__(self) -> None:
        """Refuse a key without its certificate."""
        if self.key is not None and self.certificate is None:
            raise FieldError("certificate", "given beside key", self.certificate)

    @property
    def has_certificate(self) -> bool:
        """Whether the settings name a certificate, which identifies the program."""
        return self.certificate is not None or self.renewed is not None


def check_link(endpoint: Endpoint, files: TlsFiles | None) -> None:
    """Refuse a link without TLS to another machine, unless the settings allow it.

    Raises:
        FieldError: It is such a link.
    """
    is_allowed = files is not None and files.allow_plain_mqtt
    if not (endpoint.tls or endpoint.is_loopback or is_allowed):
        raise FieldError("url", PLAIN_RULE, f"mqtt://{endpoint}", PLAIN_REMEDY)


def check_links(files: TlsFiles, **urls: str | Iterable[str] | None) -> None:
    """Check the links of a settings file, as `check_link` does.

    Args:
        files: Its section ``[tls]``.
        urls: URLs by key, with two underscores for the dot.

    Raises:
        FieldError: A link is refused; the error names its key.
    """
    for name, value in urls.items():
        given = [value] if isinstance(value, str) else value or ()
        for url in given:
            try:
                check_link(Endpoint.parse(url), files)
            except FieldError as error:
                raise FieldError(
                    name.replace("__", "."), PLAIN_RULE, url, PLAIN_REMEDY
                ) from error


PLAIN_RULE: Final = "mqtts:// towards another machine"
PLAIN_REMEDY: Final = (
    "give both ends certificates (docs/how-to/certificates.md), or, where the network "
    "itself is protected, write allow_plain_mqtt = true in [tls]"
)

REMEDIES = {
    "certificate has expired": "the broker's certificate has ended: renew it there; or "
    "our clock is wrong",
    "certificate is not yet valid": "our clock is behind: see `timedatectl`",
    "Hostname mismatch": "the broker's certificate names other hosts: issue it with "
    "the host of this URL",
    "IP address mismatch": "the broker's certificate names other hosts: issue it with "
    "the address of this URL",
    "unable to get issuer": "tls.ca lacks the root of the broker's authority: copy the "
    "authority's whole ca.pem there",
    "unable to get local issuer": "the broker's certificate is of another authority: "
    "put that one's ca.pem where tls.ca says",
    "self-signed certificate": "the broker's certificate is of another authority: "
    "put that one's ca.pem where tls.ca says",
    "alert bad certificate": "the broker refuses our certificate, mostly as one not "
    "valid yet: compare the clocks of both and of its signer by `timedatectl`",
    "alert certificate expired": "our certificate has ended: issue a new one, and see "
    "why it was not renewed",
    "alert certificate revoked": "our certificate was revoked: issue a new one",
    "alert unknown ca": "our certificate is of another authority than the broker's: "
    "issue one there",
    "alert certificate unknown": "the broker's port is for daemons, which our "
    "certificate does not name: use the port for nodes, or issue the certificate again",
    "certificate required": "the broker asks for a certificate: set tls.certificate "
    "and tls.key",
    "handshake failure": "the broker takes no certificate of ours: set tls.certificate "
    "and tls.key",
    "wrong version number": "no TLS is spoken there: use mqtt:// or the broker's TLS "
    "port",
    "alert protocol version": "the broker supports no TLS 1.2 or newer",
}


def make_ssl_context(files: TlsFiles) -> ssl.SSLContext:
    """Make a context for TLS 1.2 or newer that verifies the broker's certificate.

    Raises:
        TlsFileError: A file cannot be used; the error has its settings key.
    """
    # As OpenSSL does, to compare the validity of certificates.
    found = find_certificates(files, datetime.now(UTC))  # noqa: TID251
    errors = list(found.errors)
    for pair in found.usable:
        try:
            context = _make_context(files.ca, *pair)
        except TlsFileError as error:
            if error.field == "tls.ca":
                raise
            errors.append(error)
            continue
        if errors:
            log.warning("%s; %s is used instead", errors[0], pair[0])
        return context
    raise errors[0]


@dataclass(frozen=True)
class FoundCertificates:
    """Our own certificates.

    Attributes:
        usable: Files whose certificate can be read, the one to use first.
        errors: Why others cannot be used.
    """

    usable: list[CertificateFiles]
    errors: list[TlsFileError]


def find_certificates(
    files: TlsFiles, now: datetime | None = None
) -> FoundCertificates:
    """Find the renewed certificate, its copy and the issued one.

    The one with the latest end comes first. With ``now``, those that are not valid yet
    come last, as of a signer whose clock was ahead.

    A card that has damaged the renewed file must not end the link of a machine that has
    a certificate which is still valid. The copy counts only beside a renewed file, so
    that it is enough to delete that one. Neither counts if it is of another name, as
    when another program renews into the same file.
    """
    issued = (files.certificate, files.key)
    if files.renewed is None or not Path(files.renewed).is_file():
        return FoundCertificates([issued], [])
    read: dict[CertificateFiles, Certificate] = {}
    errors: list[TlsFileError] = []
    copy = files.renewed + COPY_SUFFIX
    for pair in (issued, (files.renewed, None), (copy, None)):
        path = pair[0]
        if path is None or not Path(path).is_file():
            continue
        try:
            read[pair] = read_certificate(path)
            if issued in read:
                check_same_name(path, read[pair], read[issued])
        except TlsFileError as error:
            read.pop(pair, None)
            setting = "tls.certificate" if pair == issued else "tls.renewed"
            errors.append(TlsFileError(setting, path, error.reason))

    def rank(pair: CertificateFiles) -> tuple[bool, datetime, bool]:
        begins, end = read[pair].not_valid_before_utc, read[pair].not_valid_after_utc
        return now is None or begins <= now, end, pair != issued

    return FoundCertificates(sorted(read, key=rank, reverse=True), errors)


def select_certificate(files: TlsFiles) -> CertificateFiles:
    """Files of certificate and key: the renewed ones when they are valid for longer.

    Raises:
        TlsFileError: None of them can be read.
    """
    found = find_certificates(files)
    if not found.usable:
        raise found.errors[0]
    return found.usable[0]


_PEER_ENDS: dict[int, tuple[Endpoint, float]] = {}


def note_peer_certificate(link: object, endpoint: Endpoint, sock: object) -> None:
    """Note the end of a broker's certificate after the handshake.

    Args:
        link: The connection, which keeps one socket at a time.
        endpoint: Address of the broker.
        sock: Its socket; one without TLS is ignored.
    """
    if isinstance(sock, ssl.SSLSocket) and (peer := sock.getpeercert()):
        end_s = ssl.cert_time_to_seconds(str(peer["notAfter"]))
        _PEER_ENDS[id(link)] = endpoint, end_s


_CLIENT_IDS: dict[int, tuple[Endpoint, Callable[[], bool]]] = {}


def note_client_id(
    link: object, endpoint: Endpoint, is_shared: Callable[[], bool]
) -> None:
    """Note a connection.

    Args:
        link: The connection.
        endpoint: Address of the broker.
        is_shared: Whether another program seems to connect with its client id.
    """
    _CLIENT_IDS[id(link)] = endpoint, is_shared


def list_shared_client_ids() -> dict[Endpoint, bool]:
    """By broker, whether another program seems to use a client id of this process."""
    links = _CLIENT_IDS.copy().values()
    return dict(sorted((endpoint, is_shared()) for endpoint, is_shared in links))


def forget_link(link: object) -> None:
    """Forget what was noted for a connection that has been stopped."""
    _PEER_ENDS.pop(id(link), None)
    _CLIENT_IDS.pop(id(link), None)


def list_peer_certificate_ends() -> dict[Endpoint, float]:
    """Ends of the certificates of this process's brokers, as Unix time.

    Of several connections to one broker the latest end counts: the others may have been
    made before its certificate was replaced.
    """
    return dict(sorted(_PEER_ENDS.copy().values()))


def read_certificate_end(path: str) -> datetime:
    """End of validity of the certificate in a file.

    Raises:
        TlsFileError: The file holds no certificate.
    """
    return read_certificate(path).not_valid_after_utc


def read_certificate(path: str) -> "Certificate":
    """The first certificate in a file.

    Raises:
        TlsFileError: The file holds no certificate.
    """
    # Imported late: 14 MB that a node without a renewed certificate does not need.
    from cryptography.x509 import load_pem_x509_certificate  # noqa: PLC0415

    try:
        return load_pem_x509_certificate(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise TlsFileError("tls.certificate", path, str(error)) from error


def check_same_name(path: str, renewed: "Certificate", ours: "Certificate") -> None:
    """Refuse a renewed certificate of another name; without a name all is accepted.

    Raises:
        TlsFileError: The names differ.
    """
    theirs, own = _common_name(renewed), _common_name(ours)
    if theirs and own and theirs != own:
        raise TlsFileError(
            "tls.renewed",
            path,
            f"it is the certificate of {theirs!r}, and ours is of {own!r}; give each "
            "program a file of its own there",
        )


def _common_name(certificate: "Certificate") -> str:
    from cryptography.x509.oid import NameOID  # noqa: PLC0415 - as above

    try:
        found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except ValueError:  # a subject that is no name
        return ""
    return str(found[0].value) if found else ""


def describe_tls_error(error: BaseException) -> str:
    """The text of an error, and the remedy if it is known."""
    text = str(error)
    for pattern, remedy in REMEDIES.items():
        if pattern.casefold() in text.casefold().replace("_", " "):
            return f"{text}; {remedy}"
    return text


def _make_context(ca: str, certificate: str | None, key: str | None) -> ssl.SSLContext:
    ssl_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ssl_context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        ssl_context.load_verify_locations(ca)
    except (OSError, ssl.SSLError) as error:
        raise TlsFileError("tls.ca", ca, _reason(error)) from error
    if certificate is not None:
        _load(ssl_context, certificate, key)
    return ssl_context


def _load(ssl_context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    try:
        if TPM_KEY_MARK in Path(key or certificate).read_bytes():
            load_tpm_provider()
        # Without this password OpenSSL would prompt for one at the terminal.
        ssl_context.load_cert_chain(certificate, key, password="")
    except TpmError as error:
        raise TlsFileError("tls.key", key or certificate, str(error)) from error
    except ssl.SSLError as error:
        remedy = (
            f"{_reason(error)}; the key must be the certificate's, without password, "
            "and if a TPM made it, that of this machine"
        )
        raise TlsFileError("tls.key", key or certificate, remedy) from error
    except OSError as error:
        where = f"{certificate} and {key}" if key else certificate
        raise TlsFileError("tls.certificate and tls.key", where, str(error)) from error


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "it holds no PEM"
    return error.strerror or str(error)


TPM_KEY_MARK: Final = b"-----BEGIN TSS2 PRIVATE KEY-----"
TPM_PROVIDERS: Final = ("default", "tpm2")
"""In this order: of two implementations OpenSSL takes the first, or the preferred."""

TPM_PROPERTIES: Final = (
    "?tpm2.signature=yes,tpm2.digest!=yes,tpm2.cipher!=yes,tpm2.rand!=yes"
)
"""Query of implementations (OpenSSL's property(7)): the TPM's for signatures only.
Without it OpenSSL 3.0 would sign by its own one, which has no private key."""

_TPM_REMEDY: Final = (
    "install tpm2-openssl, see that /dev/tpmrm0 exists and that this user is in its "
    "group, tss; a key of another TPM must be replaced "
    "(docs/how-to/certificates.md#a-key-in-a-tpm)"
)


class TpmError(YamamoriError, OSError):
    """The TPM, or a key of it, cannot be used."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"the TPM 2.0 cannot be used: {cause}; {_TPM_REMEDY}")


@cache
def load_tpm_provider() -> None:
    """Let the OpenSSL of `ssl` use keys in the TPM, in this process.

    Not by a configuration of OpenSSL, which would also be read by the other OpenSSL in
    the process, that of `cryptography`.

    Raises:
        TpmError: There is no provider, or no TPM; the next call tries again.
    """
    try:
        # The library that `ssl` has loaded: a second name of the same file.
        crypto = ctypes.CDLL("libcrypto.so.3")
    except OSError as error:
        raise TpmError(str(error)) from error
    crypto.OSSL_PROVIDER_load.restype = ctypes.c_void_p
    for name in TPM_PROVIDERS:
        if crypto.OSSL_PROVIDER_load(None, name.encode()) is None:
            text = ctypes.create_string_buffer(256)
            crypto.ERR_peek_last_error.restype = ctypes.c_ulong
            last = ctypes.c_ulong(crypto.ERR_peek_last_error())
            crypto.ERR_error_string_n(last, text, ctypes.c_size_t(len(text)))
            crypto.ERR_clear_error()  # otherwise `ssl` would report it as its own
            raise TpmError(f"provider {name}: {text.value.decode(errors='replace')}")
    crypto.EVP_set_default_properties(None, TPM_PROPERTIES.encode())
