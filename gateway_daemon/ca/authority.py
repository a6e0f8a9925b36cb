"""The authority's key and what it signs. No I/O.

ECDSA on P-256: every OpenSSL since 1.0 and every smart card knows it, and a
certificate with it costs a slow link half of what RSA costs.

Source: RFC 5280 sections 4.1, 4.2 and 5.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gateway_daemon.ca.errors import AuthorityFileError, RefusedError
from gateway_daemon.ca.identity import BROKER, Identity
from gateway_daemon.ca.register import Issued
from spatial_mqtt.renewal import PublicKey

DAY_S = 86_400.0
AUTHORITY_DAYS = 3650.0
BACKDATED_S = 3600.0
"""A node's clock may be behind; what is issued now must count there, too."""

LIST_DAYS = 3650.0
"""A broker refuses everybody when its list of revocations has ended: a list counts
until there is a newer one."""


@dataclass(frozen=True)
class Authority:
    """A key that signs, and the certificate that says so."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, name: str, now_s: float) -> Self:
        """A new authority for ten years."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
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
            .CertificateBuilder(subject, subject, key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_at(now_s - BACKDATED_S))
            .not_valid_after(_at(now_s + AUTHORITY_DAYS * DAY_S))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(uses, critical=True)
            .add_extension(_key_id(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(made, key)

    @classmethod
    def load(cls, certificate: bytes, key: bytes, password: bytes | None) -> Self:
        """An authority from its two PEM files.

        Raises:
            AuthorityFileError: They are not, or the password is wrong.
        """
        try:
            loaded = serialization.load_pem_private_key(key, password)
            made = x509.load_pem_x509_certificate(certificate)
        except (ValueError, TypeError) as error:
            raise AuthorityFileError(
                f"the authority's key or certificate cannot be read: {error}; "
                "is its password given?"
            ) from error
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise AuthorityFileError("the authority's key must be of an elliptic curve")
        return cls(made, loaded)

    def issue(
        self, identity: Identity, key: PublicKey, now_s: float, life_s: float
    ) -> tuple[x509.Certificate, Issued]:
        """A certificate for a public key, and its line of the register.

        Raises:
            RefusedError: The identity breaks a rule, or would outlive us.
        """
        identity.check()
        until_s = now_s + life_s
        if until_s > self.certificate.not_valid_after_utc.timestamp():
            raise RefusedError(
                f"a life of {life_s / DAY_S:.0f} days is longer than the authority's; "
                "make a new authority"
            )
        usage = ExtendedKeyUsageOID
        uses = usage.SERVER_AUTH if identity.role == BROKER else usage.CLIENT_AUTH
        serial = x509.random_serial_number()
        made = (
            x509
            .CertificateBuilder(self.certificate.subject, identity.subject(), key)
            .serial_number(serial)
            .not_valid_before(_at(now_s - BACKDATED_S))
            .not_valid_after(_at(until_s))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
            .add_extension(x509.ExtendedKeyUsage([uses]), critical=False)
            .add_extension(identity.beside(), critical=False)
            .add_extension(self._our_key_id(), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return made, Issued(f"{serial:x}", identity, until_s)

    def revocations(self, revoked: Sequence[Issued], now_s: float) -> bytes:
        """The list of revocations, as PEM."""
        builder = (
            x509
            .CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(_at(now_s - BACKDATED_S))
            .next_update(_at(now_s + LIST_DAYS * DAY_S))
        )
        for each in revoked:
            builder = builder.add_revoked_certificate(
                x509
                .RevokedCertificateBuilder()
                .serial_number(int(each.serial, 16))
                .revocation_date(_at(each.revoked_s or now_s))
                .build()
            )
        signed = builder.sign(self.key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)

    def has_signed(self, certificate: x509.Certificate) -> bool:
        """Whether a certificate is one of ours, in time or not."""
        try:
            certificate.verify_directly_issued_by(self.certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def _our_key_id(self) -> x509.AuthorityKeyIdentifier:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())


def _key_id(key: PublicKey) -> x509.SubjectKeyIdentifier:
    return x509.SubjectKeyIdentifier.from_public_key(key)


def _at(unix_s: float) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(seconds=round(unix_s))


def is_same_list(one: bytes, other: bytes) -> bool:
    """Whether two lists of revocations, as PEM, name the same certificates."""
    try:
        lists = [x509.load_pem_x509_crl(each) for each in (one, other)]
    except ValueError:
        return False
    issuers = {each.issuer.public_bytes() for each in lists}
    mine, others = ({each.serial_number for each in named} for named in lists)
    return len(issuers) == 1 and mine == others
