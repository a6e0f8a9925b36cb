"""Settings of the console, and of its sign-in by an OpenID provider."""

import hashlib
from dataclasses import astuple, dataclass
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

from backend_spark.console.notifications.rules import NotificationSection
from service_runtime.errors import FieldError
from service_runtime.metrics import parse_listen_address
from service_runtime.settings import KeyRule, key
from service_runtime.tls import Endpoint

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


def check_networks(networks: tuple[str, ...]) -> None:
    """Check addresses and networks.

    Raises:
        FieldError: One is neither an address nor a network.
    """
    for network in networks:
        try:
            ip_network(network)
        except ValueError as error:
            rule = "addresses or networks, such as 10.0.0.5 or 10.0.0.0/24"
            raise FieldError("console.proxies", rule, network, str(error)) from error


@dataclass(frozen=True)
class ConsoleSection:
    """``[console]``: the web pages of the analysts."""

    host: str = key(KeyRule("Address to listen on."), "127.0.0.1")
    port: int = key(KeyRule("TCP port.", low=1, high=65_535), 8088)
    place: str = key(KeyRule("Name of the municipality, for titles and reports."), "")
    language: str = key(
        KeyRule("Language of users who have not chosen one.", choices=("ja", "en")),
        "ja",
    )
    accounts: str | None = key(
        KeyRule(
            "File written by console-account; without it anyone on this machine can "
            "view the console, and nobody can change anything."
        ),
        None,
    )
    calibration: str | None = key(
        KeyRule(
            "File written by evaluate --calibrate: how many of 100 such days had "
            "landslides is shown beside the level of a cell; absent: not shown."
        ),
        None,
    )
    exercise: bool = key(
        KeyRule("Take the newest data as the present time: for exercises and replays."),
        False,
    )
    sender: str = key(
        KeyRule("Sender in CAP drafts, such as bosai@city.example."),
        "draft@yamamori.invalid",
    )
    tiles: str | None = key(
        KeyRule("URL of map tiles with {z}, {x} and {y}; absent: a plain map."),
        None,
    )
    map_packs: tuple[str, ...] = key(
        KeyRule(
            "MBTiles or PMTiles files that the console serves as the ground of its "
            "map, the lowest first; empty: a plain map."
        ),
        (),
    )
    proxy_header: str | None = key(
        KeyRule("Header in which a reverse proxy passes the name of the user."), None
    )
    proxies: tuple[str, ...] = key(
        KeyRule(
            "Addresses or networks of reverse proxies whose X-Forwarded-For, "
            "X-Forwarded-Proto and proxy_header are accepted.",
            check=check_networks,
        ),
        ("127.0.0.1",),
    )
    managers: tuple[str, ...] = key(
        KeyRule(
            "Brokers of the Managers, each mqtt://host:port or mqtts://host:port: "
            "their list of gateways is shown; empty: the gateways that nodes report.",
            check=lambda urls: [Endpoint.parse(url) for url in urls],
        ),
        (),
    )
    metrics: str | None = key(
        KeyRule(
            "Address where Prometheus scrapes the console, host:port; absent: none.",
            check=lambda listen: listen is None or parse_listen_address(listen),
        ),
        None,
    )
    address: str = key(
        KeyRule(
            "Address of the pages for links in notifications and for the provider of "
            "console.oidc, such as https://console.city.example/; empty: no links."
        ),
        "",
    )
    oidc: OidcSection | None = key(  # noqa: RUF009 - makes a field
        KeyRule("Sign-in by an OpenID provider, beside the accounts."), None
    )
    heartbeat: str | None = key(
        KeyRule(
            "URL of a dead man's switch, requested every minute while cells are judged "
            "and the console delivers its notifications; or /path/of/a/file whose "
            "first line it is."
        ),
        None,
    )
    notifications: tuple[NotificationSection, ...] = key(
        KeyRule("Rules: which events the console notifies, and to which receivers."), ()
    )

    def __post_init__(self) -> None:
        """Refuse a provider without what it needs, and two rules of one name.

        Without accounts nobody could log in while the provider is away, and it sends
        the browser back to the address. The delivery log names rules only.
        """
        if self.oidc is not None and self.accounts is None:
            rule, remedy = "set beside console.oidc", "make one with console-account"
            raise FieldError("accounts", rule, "none", remedy)
        if self.oidc is not None and not is_protected(self.address):
            rule = "https://host/ beside console.oidc"
            raise FieldError("address", rule, self.address)
        names = [rule.name for rule in self.notifications]
        for name in names:
            if names.count(name) > 1:
                raise FieldError("notifications.name", "a name of its own", name)
