"""ID tokens: their signature, their claims, and the user that they name.

Source: OpenID Connect Core 1.0, section 3.1.3.7.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jws import JWSRegistry
from joserfc.jwt import JWTClaimsRegistry

from backend_spark.console.accounts import ROLES, check_account_name
from backend_spark.console.oidc.provider import OpenidProvider, SignInError
from backend_spark.console.oidc.settings import OidcSection
from service_runtime.errors import FieldError, shortened

ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512",
)  # fmt: skip
"""With public keys: with ``none`` or a shared key anyone could sign."""

LEEWAY_S: Final = 60
"""Difference of the clocks of provider and console."""


@dataclass(frozen=True)
class OpenidUser:
    """A user as the provider states it.

    Attributes:
        subject: Identifies the user at the provider, for ever.
        name: In the console and its journal.
        role: One of `ROLES`.
    """

    subject: str
    name: str
    role: str


def read_id_token(
    token: str, nonce: str, provider: OpenidProvider, now_s: float
) -> OpenidUser:
    """Check an ID token, and return whom it names.

    Args:
        token: As the provider gave it.
        nonce: Of the sign-in.
        provider: Whose token it must be.
        now_s: Unix time.

    Raises:
        SignInError: The token is invalid, or the user has no role, or the provider is
            away.
    """
    section = provider.section
    try:
        claims = _verified(token, provider, now_s)
        JWTClaimsRegistry(
            now=int(now_s),
            leeway=LEEWAY_S,
            sub={"essential": True},
            exp={"essential": True},
            iat={"essential": True},
        ).validate(claims)
    except (JoseError, ValueError, TypeError) as error:
        raise SignInError("invalid", f"the ID token is refused: {error}") from error
    _check_party(claims, section, nonce)
    name, role = _name(claims, section), _role(claims, section)
    return OpenidUser(claims["sub"], name, role)


def _verified(token: str, provider: OpenidProvider, now_s: float) -> dict[str, Any]:
    # Headers that the library does not know change nothing in how it verifies.
    registry = JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
    keys = provider.keys(now_s)
    try:
        return jwt.decode(token, keys, registry=registry).claims
    except InvalidKeyIdError:  # the provider has changed its keys
        keys = provider.keys(now_s, renew=True)
        return jwt.decode(token, keys, registry=registry).claims


def _check_party(claims: Mapping[str, Any], section: OidcSection, nonce: str) -> None:
    """Check for whom the token was made, by whom, and in which sign-in.

    The library's own checks also accept a list that contains the value.
    """
    if claims.get("iss") != section.issuer:
        raise _invalid("iss", section.issuer, claims.get("iss"))
    audience = claims.get("aud")
    if audience not in (section.client_id, [section.client_id]):
        raise _invalid("aud", section.client_id, audience)
    if claims.get("azp", section.client_id) != section.client_id:
        raise _invalid("azp", section.client_id, claims["azp"])
    found = claims.get("nonce")
    if not isinstance(found, str) or not hmac.compare_digest(
        found.encode(), nonce.encode()
    ):
        raise _invalid("nonce", "that of this sign-in", found)


def _invalid(claim: str, rule: str, value: object) -> SignInError:
    text = f"{claim} of the ID token must be {rule}, got {shortened(value)}"
    return SignInError("invalid", text)


def _name(claims: Mapping[str, Any], section: OidcSection) -> str:
    found = claim_at(claims, section.user_claim)
    try:
        return check_account_name(found if isinstance(found, str) else "")
    except FieldError as error:
        text = f"claim {section.user_claim} of the ID token: {error}"
        raise SignInError("name", text) from error


def _role(claims: Mapping[str, Any], section: OidcSection) -> str:
    """The highest role that a value of the claim gives; there is no default."""
    found = claim_at(claims, section.role_claim)
    values = found if isinstance(found, list) else [found]
    given = {each for each in values if isinstance(each, str)}
    lists = (section.viewers, section.analysts, section.chiefs)
    roles = [
        role
        for role, known in zip(ROLES, lists, strict=True)
        if given.intersection(known)
    ]
    if not roles:
        text = f"claim {section.role_claim} of the ID token gives no role"
        raise SignInError("role", f"{text}, got {shortened(found)}")
    return roles[-1]


def claim_at(claims: Mapping[str, Any], path: str) -> Any:  # noqa: ANN401 - any JSON
    """Claim of a name, or at a path of names with dots; None if there is none."""
    if path in claims:
        return claims[path]
    found: Any = claims
    for part in path.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    return found
