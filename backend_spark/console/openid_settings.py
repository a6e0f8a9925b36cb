"""Settings of the sign-in by an OpenID provider."""

import hashlib
from dataclasses import astuple, dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from service_runtime.errors import FieldError
from service_runtime.settings import KeyRule, key

BEGIN: Final = "oidc/login"
"""Path below `console.address` where a sign-in begins."""

CALLBACK: Final = "oidc/callback"
"""Path below `console.address` to which the provider sends the browser back."""


def is_protected(url: str) -> bool:
    """Whether a URL is https, or http that does not leave this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:  # such as https://[
        return False
    host = parts.hostname or ""
    try:
        is_local = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        is_local = False
    is_http_here = parts.scheme == "http" and is_local
    return bool(host) and (parts.scheme == "https" or is_http_here)


def check_protected_url(url: str) -> None:
    """Refuse a URL that others on the network could read or change.

    Raises:
        FieldError: It is not https, or has credentials, a query or a fragment.
    """
    if not is_protected(url) or not {"@", "?", "#"}.isdisjoint(url):
        rule = "https://host/path without credentials, query and fragment"
        raise FieldError("url", rule, url)


def check_beside_oidc(accounts: str | None, address: str) -> None:
    """Refuse a provider without what it needs in ``[console]``.

    Args:
        accounts: The accounts file; without it nobody could log in while the provider
            is away.
        address: Of the pages, to which the provider sends the browser back.

    Raises:
        FieldError: One is missing.
    """
    if accounts is None:
        rule, remedy = "set beside console.oidc", "make one with console-account"
        raise FieldError("accounts", rule, "none", remedy)
    if not is_protected(address):
        raise FieldError("address", "https://host/ beside console.oidc", address)


def _check_scopes(scopes: tuple[str, ...]) -> None:
    if "openid" not in scopes:
        raise FieldError("scopes", "a list with openid", list(scopes))


@dataclass(frozen=True)
class OidcSection:
    """``[console.oidc]``: sign-in by an OpenID provider."""

    issuer: str = key(
        KeyRule(
            "URL of the provider as its discovery document states it (issuer).",
            check=check_protected_url,
        )
    )
    client_id: str = key(KeyRule("Name of the console at the provider."))
    client_secret_file: str | None = key(
        KeyRule(
            "File whose first line is the console's secret at the provider; absent: a "
            "public client, which PKCE alone protects."
        ),
        None,
    )
    name: str = key(
        KeyRule("Name of the provider on the login page; empty: its host."), ""
    )
    scopes: tuple[str, ...] = key(
        KeyRule("Scopes that are requested.", check=_check_scopes),
        ("openid", "profile"),
    )
    user_claim: str = key(
        KeyRule(
            "Claim of the ID token that is the user's name in the console and in its "
            "journal; it must be one that users cannot change themselves."
        ),
        "preferred_username",
    )
    role_claim: str = key(
        KeyRule(
            "Claim of the ID token with the user's roles or groups, a text or a list; "
            "dots reach into objects, as in realm_access.roles."
        ),
        "roles",
    )
    viewers: tuple[str, ...] = key(
        KeyRule("Values of the role claim that give the role viewer."), ()
    )
    analysts: tuple[str, ...] = key(
        KeyRule("Values of the role claim that give the role analyst."), ()
    )
    chiefs: tuple[str, ...] = key(
        KeyRule("Values of the role claim that give the role chief."), ()
    )
    ca: str | None = key(
        KeyRule(
            "File of the certificates (PEM) that may sign the provider's; absent: "
            "those of this machine."
        ),
        None,
    )

    def __post_init__(self) -> None:
        """Refuse settings with which nobody could sign in."""
        if not (self.viewers or self.analysts or self.chiefs):
            rule = "set: one of viewers, analysts and chiefs"
            raise FieldError("chiefs", rule, [])

    @property
    def title(self) -> str:
        """Name of the provider for users."""
        return self.name or urlsplit(self.issuer).hostname or self.issuer

    @property
    def digest(self) -> str:
        """Digest of the settings; sessions that began with others end."""
        return hashlib.sha256(repr(astuple(self)).encode()).hexdigest()
