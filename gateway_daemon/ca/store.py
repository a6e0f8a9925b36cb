"""Folder of the authority: keys that only their owner can read, and the register.

    ca.pem  ca.key  register.json  revoked.pem  revoked-infrastructure.pem
    issued/<name>.pem  issued/<name>.key

A lock allows one writing process at a time. Each file is replaced atomically.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gateway_daemon.ca.authority import (
    AuthorityFileError,
    CertificateAuthority,
    CertificateRegister,
    Identity,
)
from service_runtime.decoding import decode_json
from service_runtime.files import fsync_folder, write_atomic
from spatial_mqtt.certificate_renewal import PublicKey

PEM = serialization.Encoding.PEM
AUTHORITY_FILE, AUTHORITY_KEY_FILE = "ca.pem", "ca.key"
REGISTER_FILE, CRL_FILE, ISSUED_FOLDER = "register.json", "revoked.pem", "issued"
INFRASTRUCTURE_CRL_FILE = "revoked-infrastructure.pem"
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

    def create(self, name: str) -> None:
        """Create the authority.

        Raises:
            AuthorityFileError: One exists already.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (self.path / AUTHORITY_KEY_FILE).exists():
            rule = "is there already; a second one would make all certificates foreign"
            raise AuthorityFileError(f"{self.path / AUTHORITY_KEY_FILE} {rule}")
        made = CertificateAuthority.create(name, self._wall_s())
        write_file(
            self.path / AUTHORITY_KEY_FILE,
            encode_key(made.key, self._password),
            PRIVATE_MODE,
        )
        write_file(
            self.path / AUTHORITY_FILE, made.certificate.public_bytes(PEM), PUBLIC_MODE
        )
        self._keep(made, CertificateRegister())

    def load_authority(self) -> CertificateAuthority:
        """Load the authority.

        Raises:
            AuthorityFileError: There is none, or the password is wrong.
        """
        certificate, key = (
            self._bytes(n) for n in (AUTHORITY_FILE, AUTHORITY_KEY_FILE)
        )
        return CertificateAuthority.load(certificate, key, self._password)

    def load_register(self) -> CertificateRegister:
        """Load the register.

        Raises:
            AuthorityFileError: There is no register, or it is damaged.
        """
        try:
            return decode_json(self._bytes(REGISTER_FILE), CertificateRegister)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            where = self.path / REGISTER_FILE
            raise AuthorityFileError(f"{where} is damaged: {error}") from error

    def issue(self, identity: Identity, key: PublicKey, lifetime_s: float) -> bytes:
        """Issue and register a certificate; return it as PEM.

        Raises:
            CertificateRefusedError: A rule forbids it.
            AuthorityFileError: The folder cannot be used.
        """
        with self._locked():
            authority, register = self.load_authority(), self.load_register()
            now_s = self._wall_s()
            made, line = authority.issue(identity, key, now_s, lifetime_s)
            self._keep(authority, register.with_issued(line, now_s))
        return made.public_bytes(PEM)

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
        now_s, revoked = self._wall_s(), register.list_revoked()
        infrastructure = authority.make_crl(revoked, now_s, for_infrastructure=True)
        write_file(
            self.path / REGISTER_FILE, msgspec.json.encode(register), PUBLIC_MODE
        )
        write_file(self.path / INFRASTRUCTURE_CRL_FILE, infrastructure, PUBLIC_MODE)
        write_file(
            self.path / CRL_FILE, authority.make_crl(revoked, now_s), PUBLIC_MODE
        )

    def _bytes(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            remedy = "make one with gateway-daemon ca init, or name its folder"
            raise AuthorityFileError(
                f"no authority in {self.path}: {error.strerror} ({name}); {remedy}"
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

    Raises:
        LookupError: The owner is not a user.
    """
    if owner is None:
        write_atomic(path, data, mode)
        return
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        shutil.chown(fresh, owner)
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    fresh.replace(path)
    fsync_folder(path.parent)
