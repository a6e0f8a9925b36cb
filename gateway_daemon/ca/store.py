"""Folder of the authority: keys that only their owner can read, and the register.

    ca.pem  ca.key  register.json  revoked.pem  revoked-infrastructure.pem
    issued/<name>.pem  issued/<name>.key  root.pem  root.key
    renewed/<serial number of the old certificate>.pem

`ca.key` is of the issuing authority, or has the URI of its key in a token. `root.key`
is needed only to replace that one, and should be moved away.

A lock allows one writing process at a time. Each file is replaced atomically.

Such a token is of PKCS #11: it signs and keeps the key.
Sources: PKCS #11 Cryptographic Token Interface Current Mechanisms 2.40, section 2.3.6
(CKM_ECDSA); RFC 7512 for the URI.
"""

import fcntl
import hashlib
import os
import pwd
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import unquote

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.x509.oid import NameOID
from msgspec import structs

from gateway_daemon.ca.authority import (
    PEM,
    AuthorityFileError,
    CertificateAuthority,
    CertificateRefusedError,
    CertificateRegister,
    Identity,
    IssuedCertificate,
    RenewalContestedError,
)
from service_runtime.decoding import DECODE_ERRORS, decode_json
from service_runtime.files import fsync_folder, write_atomic
from spatial_mqtt.certificates import PublicKey, verify_request
from spatial_mqtt.hardware_key import HardwareKey

AUTHORITY_FILE, AUTHORITY_KEY_FILE = "ca.pem", "ca.key"
REGISTER_FILE, CRL_FILE, ISSUED_FOLDER = "register.json", "revoked.pem", "issued"
INFRASTRUCTURE_CRL_FILE = "revoked-infrastructure.pem"
RENEWED_FOLDER = "renewed"
ROOT_FILE, ROOT_KEY_FILE = "root.pem", "root.key"
PRIVATE_MODE, PUBLIC_MODE = 0o600, 0o644


class AuthorityFolder:
    """An authority on disk.

    Args:
        path: Its folder.
        wall_s: Unix time.
        password: Of the authority's key; None if it has none.
    """

    def __init__(
        self, path: Path, wall_s: Callable[[], float], password: bytes | None = None
    ) -> None:
        self.path = path
        self._wall_s = wall_s
        self._password = password

    def create(self, name: str, token: str | None = None) -> None:
        """Create the authority.

        Args:
            name: Of the municipality.
            token: URI where the issuing authority's key is made; None for a file.

        Raises:
            AuthorityFileError: One exists already.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (self.path / AUTHORITY_KEY_FILE).exists():
            rule = "is there already; a second one would make all certificates foreign"
            raise AuthorityFileError(f"{self.path / AUTHORITY_KEY_FILE} {rule}")
        issuing_key = TokenKey.generate(token) if token else None
        root = CertificateAuthority.create_root(name, self._wall_s())
        key = encode_key(root.key, self._password)
        write_file(self.path / ROOT_KEY_FILE, key, PRIVATE_MODE)
        write_file(self.path / ROOT_FILE, root.trusted, PUBLIC_MODE)
        issuing = root.create_issuing(self._wall_s(), issuing_key)
        self.install(issuing, CertificateRegister())

    def replace_issuing(self, root_key: Path, token: str | None = None) -> None:
        """Replace the issuing authority, whose key is lost or stolen.

        Brokers refuse what the old one issued as soon as they have the new list of
        revocations. Machines that trust the root accept what the new one issues.

        Args:
            root_key: File of the root's key, with the same password.
            token: URI where the new key is made; None for a file.

        Raises:
            AuthorityFileError: The root's files are missing or do not match.
        """
        with self._locked():
            certificate, register = self._bytes(ROOT_FILE), self.load_register()
            try:
                key = root_key.read_bytes()
            except OSError as error:
                raise AuthorityFileError(
                    f"the root's key {root_key} cannot be read: {error.strerror}; "
                    "name the copy that was moved away"
                ) from error
            root = CertificateAuthority.load(certificate, key, self._password)
            if root.key.public_key() != root.certificate.public_key():
                raise AuthorityFileError(
                    f"{root_key} must be the key of {self.path / ROOT_FILE}"
                )
            now_s = self._wall_s()
            for name in {each.identity.name for each in register.issued}:
                if register.find_holder(name, now_s) is not None:
                    register = register.with_revoked(name, now_s)
            issuing_key = TokenKey.generate(token) if token else None
            self.install(root.create_issuing(now_s, issuing_key), register)

    def install(
        self, made: CertificateAuthority, register: CertificateRegister
    ) -> None:
        """Write the files of an authority and its register."""
        if isinstance(made.key, TokenKey):
            key = f"{made.key.uri.text}\n".encode()
        else:
            key = encode_key(made.key, self._password)
        write_file(self.path / AUTHORITY_KEY_FILE, key, PRIVATE_MODE)
        write_file(self.path / AUTHORITY_FILE, made.trusted, PUBLIC_MODE)
        self._keep(made, register)

    def load_authority(self) -> CertificateAuthority:
        """Load the authority.

        Raises:
            AuthorityFileError: There is none, or the password is wrong, or the token
                cannot be used.
        """
        certificate, key = (
            self._bytes(n) for n in (AUTHORITY_FILE, AUTHORITY_KEY_FILE)
        )
        if not key.startswith(PKCS11_SCHEME.encode()):
            return CertificateAuthority.load(certificate, key, self._password)
        loaded = TokenKey.open(key.decode(errors="replace").strip())
        authority = CertificateAuthority.with_key(certificate, loaded)
        if loaded.public_key() != authority.certificate.public_key():
            rule = f"must be the key of {self.path / AUTHORITY_FILE}"
            raise AuthorityFileError(f"{loaded.uri.text} {rule}")
        return authority

    def load_register(self) -> CertificateRegister:
        """Load the register.

        Raises:
            AuthorityFileError: There is no register, or it is damaged.
        """
        try:
            return decode_json(self._bytes(REGISTER_FILE), CertificateRegister)
        except DECODE_ERRORS as error:
            where = self.path / REGISTER_FILE
            raise AuthorityFileError(f"{where} is damaged: {error}") from error

    def issue(self, identity: Identity, key: PublicKey, lifetime_s: float) -> bytes:
        """Issue and register a certificate; return it with its chain, as PEM.

        Raises:
            CertificateRefusedError: A rule forbids it.
            AuthorityFileError: The folder cannot be used.
        """
        with self._locked():
            authority, register = self.load_authority(), self.load_register()
            now_s = self._wall_s()
            made, line = authority.issue(identity, key, now_s, lifetime_s)
            self._keep(authority, register.with_issued(line, now_s))
        return made.public_bytes(PEM) + authority.chain

    def renew(self, old: x509.Certificate, key: PublicKey, lifetime_s: float) -> bytes:
        """Renew a certificate once, for the same identity; return it as `issue` does.

        The same request gets the same certificate again: an answer may be lost.

        Raises:
            RenewalContestedError: It was renewed with another key.
            CertificateRefusedError: Another rule forbids it.
            AuthorityFileError: The folder cannot be used.
        """
        with self._locked():
            authority, register = self.load_authority(), self.load_register()
            now_s = self._wall_s()
            issued = register.find_renewable(old, now_s)
            answer = self.path / RENEWED_FOLDER / f"{issued.serial}.pem"
            renewed = register.find_renewed(issued.serial)
            if renewed is not None:
                return self._repeat_answer(register, issued, answer, key)
            # The newest identity: the name may have been issued again with other cells.
            identity = register.find_holder(issued.identity.name, now_s)
            made, line = authority.issue(
                identity or issued.identity, key, now_s, lifetime_s
            )
            # The answer first: what is registered can be sent again.
            answer.parent.mkdir(mode=0o700, exist_ok=True)
            pem = made.public_bytes(PEM) + authority.chain
            write_file(answer, pem, PUBLIC_MODE)
            line = structs.replace(line, replaces=issued.serial)
            self._keep(authority, register.with_issued(line, now_s))
            if issued.replaces is not None:  # its holder has received it
                answer.with_name(f"{issued.replaces}.pem").unlink(missing_ok=True)
        return pem

    def _repeat_answer(
        self,
        register: CertificateRegister,
        issued: IssuedCertificate,
        answer: Path,
        key: PublicKey,
    ) -> bytes:
        pem = self._bytes(str(answer.relative_to(self.path)))
        if x509.load_pem_x509_certificate(pem).public_key() == key:
            return pem
        name = issued.identity.name
        if issued.contested_s is None:
            contested = register.with_contested(issued.serial, self._wall_s())
            self._keep(self.load_authority(), contested)
        raise RenewalContestedError(
            f"the certificate of {name} was already renewed with another key, so its "
            f"key was copied or the renewed one was lost: revoke {name}, and issue a "
            "new certificate"
        )

    def issue_with_key(self, identity: Identity, lifetime_s: float) -> Path:
        """Issue a certificate and a new key as files; return the certificate's path.

        Raises:
            CertificateRefusedError: A rule forbids it.
            AuthorityFileError: The folder cannot be used.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        made = self.issue(identity, key.public_key(), lifetime_s)
        folder = self.path / ISSUED_FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        write_file(folder / f"{identity.name}.key", encode_key(key), PRIVATE_MODE)
        write_file(folder / f"{identity.name}.pem", made, PUBLIC_MODE)
        return folder / f"{identity.name}.pem"

    def issue_for_request(
        self, identity: Identity, request: bytes, lifetime_s: float
    ) -> Path:
        """Issue a certificate for a key made elsewhere; return its path.

        Args:
            identity: Its subject.
            request: Signing request (PKCS 10) of the key, as PEM.
            lifetime_s: Its validity.

        Raises:
            CertificateRefusedError: The request is damaged or of another name, or a
                rule forbids it.
            AuthorityFileError: The folder cannot be used.
        """
        try:
            csr = x509.load_pem_x509_csr(request)
            key = verify_request(csr)
        except ValueError as error:
            raise CertificateRefusedError(
                f"the file must be a signing request in PEM: {error}"
            ) from error
        names = csr.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        if [each.value for each in names] != [identity.name]:
            asked = ", ".join(str(each.value) for each in names) or "none"
            raise CertificateRefusedError(
                f"the request must be of {identity.name}, got {asked[:80]!r}"
            )
        made = self.issue(identity, key, lifetime_s)
        folder = self.path / ISSUED_FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / f"{identity.name}.key").unlink(missing_ok=True)
        write_file(folder / f"{identity.name}.pem", made, PUBLIC_MODE)
        return folder / f"{identity.name}.pem"

    def revoke(self, name: str) -> None:
        """Revoke every certificate of a name.

        Raises:
            CertificateRefusedError: No valid certificate has the name.
            AuthorityFileError: The folder cannot be used.
        """
        with self._locked():
            register = self.load_register().with_revoked(name, self._wall_s())
            self._keep(self.load_authority(), register)

    def _keep(
        self, authority: CertificateAuthority, register: CertificateRegister
    ) -> None:
        """Write the lists of revocations, and the register last.

        After an error, as of a token or a full disk, the register has no change yet, so
        that the command can be repeated.
        """
        now_s, revoked = self._wall_s(), register.list_revoked()
        infrastructure = authority.make_crl(revoked, now_s, for_infrastructure=True)
        everyone = authority.make_crl(revoked, now_s)
        entries = msgspec.json.encode(register)
        write_file(self.path / INFRASTRUCTURE_CRL_FILE, infrastructure, PUBLIC_MODE)
        write_file(self.path / CRL_FILE, everyone, PUBLIC_MODE)
        write_file(self.path / REGISTER_FILE, entries, PUBLIC_MODE)

    def _bytes(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError as error:
            remedy = "make one with gateway-daemon ca init, or name its folder"
            raise AuthorityFileError(
                f"no authority in {self.path}: {error.strerror} ({name}); {remedy}"
            ) from error
        except OSError as error:
            remedy = "it must belong to the owner of its folder, who runs the signer"
            raise AuthorityFileError(
                f"{self.path / name} cannot be read: {error.strerror}; {remedy}"
            ) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if not self.path.is_dir():
            raise AuthorityFileError(f"no authority in {self.path}")
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def encode_key(key: ec.EllipticCurvePrivateKey, password: bytes | None = None) -> bytes:
    """Encode a private key as PEM, encrypted if there is a password."""
    lock = (
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption()
    )
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, lock)


def write_file(path: Path, data: bytes, mode: int, owner: str | None = None) -> None:
    """Replace a file atomically; it never exists with another mode or owner.

    Its group is that of the owner. Without an owner, what root writes has owner and
    group of the folder.

    Raises:
        LookupError: The owner is not a user.
    """
    if owner is None and os.geteuid() != 0:
        write_atomic(path, data, mode)
        return
    if owner is None:
        # Root works in the folder of the signer, who must be able to read it.
        folder = path.parent.stat()
        uid, gid = folder.st_uid, folder.st_gid
    else:
        try:
            user = pwd.getpwnam(owner)
        except KeyError as error:
            raise LookupError(f"no such user: {owner!r}") from error
        uid, gid = user.pw_uid, user.pw_gid
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        os.fchown(descriptor, uid, gid)
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    fresh.replace(path)
    fsync_folder(path.parent)


PKCS11_SCHEME: Final = "pkcs11:"
PKCS11_PARTS: Final = ("token", "object", "module-path", "pin-source")
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
        path, _, query = text.removeprefix(PKCS11_SCHEME).partition("?")
        pairs = [each.partition("=") for each in (*path.split(";"), *query.split("&"))]
        found = {name: unquote(value) for name, _, value in pairs}
        if not text.startswith(PKCS11_SCHEME) or set(found) != set(PKCS11_PARTS):
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
