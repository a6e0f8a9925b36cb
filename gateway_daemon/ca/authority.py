"""Certificate authority: identities, issued certificates and revocations. No I/O.

Keys are ECDSA on P-256, which every OpenSSL since 1.0 and every smart card supports. A
certificate takes half the bytes of one with RSA, which matters on a slow link.

The root signs the certificate of the issuing authority, which signs all others; the
root's key can be kept offline. An authority of an older version has one level: it is
its own root.

The common name is the id from the program's settings; Mosquitto uses it as the user
name. The role is the organisational unit. Areas are URIs in the subject alternative
name, ``urn:yamamori:cell:/1/2/2``; the hosts of a broker are DNS names and addresses.

Errors:

AuthorityError
├── AuthorityFileError          also OSError     the authority's folder is unusable
└── CertificateRefusedError     also ValueError  a request breaks a rule
    ├── RenewalTooEarlyError    the certificate is not due for renewal
    └── RenewalContestedError   it was already renewed with another key

Source: RFC 5280 sections 4.1, 4.2, 4.2.1.6, 4.2.1.13, 5.1, 5.2.5 and 6.3.3.
"""

import ipaddress
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Self

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import structs

from spatial_mqtt.certificates import CELL_URN, PublicKey, renewal_due_s
from spatial_mqtt.errors import TopicError
from spatial_mqtt.topics import check_area, check_node_id, parse_cell_topic


class AuthorityError(Exception):
    """Base of every error of the authority."""


class AuthorityFileError(AuthorityError, OSError):
    """The authority's folder is missing, in use, or damaged."""


class CertificateRefusedError(AuthorityError, ValueError):
    """The authority refuses a request; the text is the reason."""


class RenewalTooEarlyError(CertificateRefusedError):
    """The certificate is not due for renewal."""


class RenewalContestedError(CertificateRefusedError):
    """The certificate was already renewed with another key: one key is a copy."""


NODE: Final = "node"
GATEWAY: Final = "gateway"
DISTRIBUTED: Final = "distributed"
"""Role of the program that announces a distributed broker."""

ROLES: Final = (
    NODE, GATEWAY, "backend", "manager", "admin", "client", "signer", DISTRIBUTED,
)  # fmt: skip
INFRASTRUCTURE: Final = frozenset({
    GATEWAY, "backend", "manager", "admin", "signer", DISTRIBUTED,
})  # fmt: skip
"""Roles of machines in buildings. A certificate of another role can be in a thief's
hands at any time, and is refused at listeners for these."""

BROKER: Final = "broker"
ALL_ROLES: Final = (*ROLES, BROKER)

INFRASTRUCTURE_URN = "urn:yamamori:infrastructure"
"""Distribution point in certificates of `INFRASTRUCTURE`. OpenSSL accepts a revocation
list with this point for these certificates only; a listener that has no other list
therefore refuses all others."""

SESSION_SUFFIXES: Final = (
    "-asks", "-ear", "-local", "-notices", "-out", "-overlay", "-pieces", "-presence",
    "-update", "-updates", "-watch",
)  # fmt: skip
"""Suffixes of client ids for additional sessions of the programs."""


class Identity(msgspec.Struct, frozen=True):
    """Identity in a certificate.

    Attributes:
        role: One of `ALL_ROLES`.
        name: Its id, unique over all roles.
        cells: Areas that it may publish in; of a node its one cell.
        hosts: Names and addresses under which a broker is reached.
    """

    role: str
    name: str
    cells: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    def check(self) -> "Identity":
        """Return the identity if a certificate may be issued for it.

        Raises:
            CertificateRefusedError: It breaks a rule.
        """
        try:
            check_node_id(self.name)
            for cell in self.cells:
                check_area(cell)
            if self.role == NODE:
                for cell in self.cells:
                    parse_cell_topic(cell)
        except TopicError as error:
            raise CertificateRefusedError(str(error)) from error
        if self.name.endswith(SESSION_SUFFIXES):
            tails = ", ".join(SESSION_SUFFIXES)
            raise CertificateRefusedError(
                f"name must not end like a second session ({tails}), got {self.name!r}"
            )
        self._check_role()
        return self

    def _check_role(self) -> None:
        if self.role not in ALL_ROLES:
            choices = ", ".join(ALL_ROLES)
            raise CertificateRefusedError(
                f"role must be one of {choices}, got {self.role!r}"
            )
        if self.role == NODE and len(self.cells) != 1:
            raise CertificateRefusedError(
                f"a node must have one cell, got {list(self.cells)}"
            )
        if self.role == GATEWAY and not self.cells:
            raise CertificateRefusedError(
                "a gateway must have areas; / is the whole world"
            )
        if self.role == BROKER and not self.hosts:
            raise CertificateRefusedError(
                "a broker must have the hosts under which clients reach it, got none"
            )

    def subject(self) -> x509.Name:
        """Return common name and role as a distinguished name."""
        return x509.Name([
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, self.role),
            x509.NameAttribute(NameOID.COMMON_NAME, self.name),
        ])

    def subject_text(self) -> str:
        """Return the subject as Mosquitto writes it with use_subject_as_username."""
        return f"CN={self.name},OU={self.role}"

    def alternative_names(self) -> x509.SubjectAlternativeName:
        """Return areas and hosts as subject alternative names."""
        uris = [f"urn:yamamori:{self.role}:{self.name}"]
        uris += [CELL_URN + cell for cell in self.cells]
        names: list[x509.GeneralName] = [
            x509.UniformResourceIdentifier(uri) for uri in uris
        ]
        return x509.SubjectAlternativeName(names + [_host(h) for h in self.hosts])


def common_name(certificate: x509.Certificate) -> str:
    """Return the common name of a certificate's subject; empty without one."""
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def _host(host: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise CertificateRefusedError(
            f"host must be a name or an address, got {host!r}"
        ) from error


class IssuedCertificate(msgspec.Struct, frozen=True):
    """One certificate.

    Attributes:
        serial: Its number, in hexadecimal.
        identity: Its subject.
        until_s: Unix time at which it expires.
        revoked_s: Unix time of its revocation; None without one.
        has_role_mark: Whether it names its distribution point, `INFRASTRUCTURE_URN`.
        replaces: Serial number of the certificate that this one renewed.
        contested_s: Unix time of the first request to renew it a second time, with
            another key; None without one.
    """

    serial: str
    identity: Identity
    until_s: float
    revoked_s: float | None = None
    has_role_mark: bool = False
    replaces: str | None = None
    contested_s: float | None = None


class CertificateRegister(msgspec.Struct, frozen=True):
    """All certificates, oldest first."""

    issued: tuple[IssuedCertificate, ...] = ()

    def find(self, serial: str) -> IssuedCertificate | None:
        """Return the certificate with a serial number; None if we issued none."""
        return next((each for each in self.issued if each.serial == serial), None)

    def find_renewed(self, serial: str) -> IssuedCertificate | None:
        """Return the certificate that renewed another one; None without one."""
        return next((each for each in self.issued if each.replaces == serial), None)

    def find_renewable(self, old: x509.Certificate, now_s: float) -> IssuedCertificate:
        """Return the register's entry of a certificate that is due for renewal.

        Raises:
            CertificateRefusedError: It is not registered, was revoked, has ended, or
                is not due.
        """
        issued = self.find(f"{old.serial_number:x}")
        if issued is None:
            raise CertificateRefusedError(
                "the register does not know the old certificate"
            )
        if issued.revoked_s is not None:
            raise CertificateRefusedError("the old certificate was revoked")
        if issued.until_s <= now_s:
            raise CertificateRefusedError(
                "the old certificate has ended; a new one needs a visit"
            )
        due_s = renewal_due_s(old)
        if now_s < due_s - min(CLOCK_ALLOWANCE_S, (issued.until_s - due_s) / 10):
            raise RenewalTooEarlyError(
                f"the old certificate is not due before {_at(due_s):%Y-%m-%d %H:%M} UTC"
            )
        return issued

    def with_contested(self, serial: str, now_s: float) -> Self:
        """The register with a certificate marked as contested, if it is not yet."""
        return structs.replace(
            self,
            issued=tuple(
                structs.replace(each, contested_s=now_s)
                if each.serial == serial and each.contested_s is None
                else each
                for each in self.issued
            ),
        )

    def find_holder(self, name: str, now_s: float) -> Identity | None:
        """Return the current holder of a name, by its newest valid certificate."""
        found = [e for e in self._valid(now_s) if e.identity.name == name]
        return found[-1].identity if found else None

    def list_holders(self, now_s: float) -> list[Identity]:
        """Return all identities with a valid certificate, by name."""
        newest = {e.identity.name: e.identity for e in self._valid(now_s)}
        return [newest[name] for name in sorted(newest)]

    def list_unmarked(self, now_s: float) -> list[str]:
        """Return the names of `INFRASTRUCTURE` whose newest certificate has no mark.

        Earlier versions issued certificates without.
        """
        newest = {e.identity.name: e for e in self._valid(now_s)}
        return [
            name
            for name, each in sorted(newest.items())
            if each.identity.role in INFRASTRUCTURE and not each.has_role_mark
        ]

    def areas_by_name(self, now_s: float) -> dict[str, tuple[str, ...]]:
        """Return the areas of each valid identity that has some, by name."""
        return {
            each.name: each.cells for each in self.list_holders(now_s) if each.cells
        }

    def list_revoked(self) -> list[IssuedCertificate]:
        """Return the revoked certificates."""
        return [each for each in self.issued if each.revoked_s is not None]

    def with_issued(self, issued: IssuedCertificate, now_s: float) -> Self:
        """The register with one more certificate.

        Raises:
            CertificateRefusedError: An identity of another role has the name.
        """
        identity = issued.identity
        other = self.find_holder(identity.name, now_s)
        if other is not None and other.role != identity.role:
            raise CertificateRefusedError(
                f"name {identity.name!r} belongs to a {other.role}; "
                "take another, or revoke that one first"
            )
        return structs.replace(self, issued=(*self.issued, issued))

    def with_revoked(self, name: str, now_s: float) -> Self:
        """The register with all certificates of a name revoked.

        Raises:
            CertificateRefusedError: No valid certificate has the name.
        """
        if self.find_holder(name, now_s) is None:
            raise CertificateRefusedError(f"no valid certificate has the name {name!r}")
        taken = tuple(
            structs.replace(each, revoked_s=now_s)
            if each.identity.name == name and each.revoked_s is None
            else each
            for each in self.issued
        )
        return structs.replace(self, issued=taken)

    def _valid(self, now_s: float) -> Iterator[IssuedCertificate]:
        return (e for e in self.issued if e.revoked_s is None and e.until_s > now_s)


PEM: Final = serialization.Encoding.PEM
DAY_S = 86_400.0
AUTHORITY_DAYS = 3650.0
ROOT_DAYS = 7300.0
BACKDATE_S = 3600.0
"""Start of validity before the issue: a node's clock may be slow."""

CLOCK_ALLOWANCE_S = DAY_S
"""A renewal is accepted this long before it is due, as the holder's clock may be fast;
at most a tenth of the last third of the validity."""


@dataclass(frozen=True)
class CertificateAuthority:
    """Key and certificate that sign other certificates.

    Attributes:
        certificate: Its certificate.
        key: Its private key.
        root: Certificate that signed it; None if it is its own root.
    """

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    root: x509.Certificate | None = None

    @classmethod
    def create_root(cls, name: str, now_s: float) -> Self:
        """Create a root, valid for twenty years, that signs issuing authorities."""
        return cls._create(name, now_s, ROOT_DAYS, 1, None)

    def create_issuing(
        self, now_s: float, key: ec.EllipticCurvePrivateKey | None = None
    ) -> Self:
        """Create an issuing authority that this root signs, valid for ten years.

        It does not outlive the root, with which its certificates would end unannounced.

        Args:
            now_s: Unix time.
            key: Its key; None for a new one.
        """
        # A name of its own: brokers look up a revocation list by it.
        name = f"{common_name(self.certificate)} issuing {_at(now_s):%Y-%m-%d %H:%M:%S}"
        left_s = self.certificate.not_valid_after_utc.timestamp() - now_s
        days = min(AUTHORITY_DAYS, left_s / DAY_S)
        return self._create(name, now_s, days, 0, self, key=key)

    @classmethod
    def _create(
        cls,
        name: str,
        now_s: float,
        days: float,
        path_length: int,
        root: "CertificateAuthority | None",
        *,
        key: ec.EllipticCurvePrivateKey | None = None,
    ) -> Self:
        key = key or ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = subject if root is None else root.certificate.subject
        signing_key = key if root is None else root.key
        uses = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        made = (
            x509
            .CertificateBuilder(issuer, subject, key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_at(now_s - BACKDATE_S))
            .not_valid_after(_at(now_s + days * DAY_S))
            .add_extension(x509.BasicConstraints(True, path_length), critical=True)
            .add_extension(uses, critical=True)
            .add_extension(_key_id(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(
                    signing_key.public_key()
                ),
                critical=False,
            )
            .sign(signing_key, hashes.SHA256())
        )
        return cls(made, key, None if root is None else root.certificate)

    @classmethod
    def load(cls, certificate: bytes, key: bytes, password: bytes | None) -> Self:
        """Load an authority from its two PEM files.

        Raises:
            AuthorityFileError: They are not PEM, or the password is wrong.
        """
        try:
            loaded = serialization.load_pem_private_key(key, password)
        except (ValueError, TypeError) as error:
            raise AuthorityFileError(
                f"the authority's key cannot be read: {error}; is its password given?"
            ) from error
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise AuthorityFileError("the authority's key must be of an elliptic curve")
        return cls.with_key(certificate, loaded)

    @classmethod
    def with_key(cls, certificate: bytes, key: ec.EllipticCurvePrivateKey) -> Self:
        """Load an authority from its PEM file and its key.

        Raises:
            AuthorityFileError: The file is not PEM.
        """
        try:
            made, *roots = x509.load_pem_x509_certificates(certificate)
        except ValueError as error:
            rule = "the authority's certificate must be PEM"
            raise AuthorityFileError(f"{rule}: {error}") from error
        return cls(made, key, roots[0] if roots else None)

    @property
    def chain(self) -> bytes:
        """Certificates to send after an issued one to peers that know the root; PEM."""
        return b"" if self.root is None else self.certificate.public_bytes(PEM)

    @property
    def trusted(self) -> bytes:
        """Certificates to copy to every machine, as PEM."""
        root = b"" if self.root is None else self.root.public_bytes(PEM)
        return self.certificate.public_bytes(PEM) + root

    def issue(
        self, identity: Identity, key: PublicKey, now_s: float, lifetime_s: float
    ) -> tuple[x509.Certificate, IssuedCertificate]:
        """Issue a certificate for a public key; return it with its register entry.

        Raises:
            CertificateRefusedError: A rule forbids it, or the life is too long.
        """
        identity.check()
        until_s = now_s + lifetime_s
        if until_s > self.certificate.not_valid_after_utc.timestamp():
            raise CertificateRefusedError(
                f"a life of {lifetime_s / DAY_S:.0f} days is longer than the "
                "authority's; replace it with gateway-daemon ca replace-issuing"
            )
        usage = ExtendedKeyUsageOID
        uses = usage.SERVER_AUTH if identity.role == BROKER else usage.CLIENT_AUTH
        serial = x509.random_serial_number()
        builder = (
            x509
            .CertificateBuilder(self.certificate.subject, identity.subject(), key)
            .serial_number(serial)
            .not_valid_before(_at(now_s - BACKDATE_S))
            .not_valid_after(_at(until_s))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
            .add_extension(x509.ExtendedKeyUsage([uses]), critical=False)
            .add_extension(identity.alternative_names(), critical=False)
            .add_extension(self._our_key_id(), critical=False)
        )
        has_mark = identity.role in INFRASTRUCTURE
        if has_mark:
            point = x509.DistributionPoint(_infrastructure_point(), None, None, None)
            points = x509.CRLDistributionPoints([point])
            builder = builder.add_extension(points, critical=False)
        issued = IssuedCertificate(
            f"{serial:x}", identity, until_s, has_role_mark=has_mark
        )
        return builder.sign(self.key, hashes.SHA256()), issued

    def make_crl(
        self,
        revoked: Sequence[IssuedCertificate],
        now_s: float,
        *,
        for_infrastructure: bool = False,
    ) -> bytes:
        """Return the certificate revocation list, as PEM.

        A broker rejects all clients when its list is not valid yet or has expired, so
        a list is valid as long as the authority, whatever the clock says now.

        Args:
            revoked: Its entries.
            now_s: Unix time.
            for_infrastructure: Whether it counts for `INFRASTRUCTURE` only.
        """
        builder = (
            x509
            .CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(self.certificate.not_valid_before_utc)
            .next_update(self.certificate.not_valid_after_utc)
        )
        if for_infrastructure:
            point = x509.IssuingDistributionPoint(
                full_name=_infrastructure_point(),
                relative_name=None,
                only_contains_user_certs=False,
                only_contains_ca_certs=False,
                only_some_reasons=None,
                indirect_crl=False,
                only_contains_attribute_certs=False,
            )
            builder = builder.add_extension(point, critical=True)
        for each in revoked:
            builder = builder.add_revoked_certificate(
                x509
                .RevokedCertificateBuilder()
                .serial_number(int(each.serial, 16))
                .revocation_date(_at(each.revoked_s or now_s))
                .build()
            )
        signed = builder.sign(self.key, hashes.SHA256())
        return signed.public_bytes(PEM)

    def has_issued(self, certificate: x509.Certificate) -> bool:
        """Whether this authority issued a certificate, valid or not."""
        try:
            certificate.verify_directly_issued_by(self.certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def _our_key_id(self) -> x509.AuthorityKeyIdentifier:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())


def _infrastructure_point() -> list[x509.GeneralName]:
    return [x509.UniformResourceIdentifier(INFRASTRUCTURE_URN)]


def _key_id(key: PublicKey) -> x509.SubjectKeyIdentifier:
    return x509.SubjectKeyIdentifier.from_public_key(key)


def _at(unix_s: float) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(seconds=round(unix_s))


def is_same_crl(one: bytes, other: bytes) -> bool:
    """Whether two revocation lists, as PEM, differ at most in their signature."""
    try:
        mine, others = (x509.load_pem_x509_crl(each) for each in (one, other))
    except ValueError:
        return False
    return mine.tbs_certlist_bytes == others.tbs_certlist_bytes
