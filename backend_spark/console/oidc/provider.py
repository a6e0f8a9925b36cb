"""An OpenID provider: its discovery document, its keys, and the exchange of codes.

Sources: OpenID Connect Discovery 1.0, sections 3 and 4; RFC 6749, sections 2.3.1 and
4.1.3; RFC 7636 (PKCE), section 4.5.
"""

import base64
import threading
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import quote_plus, urlencode

import msgspec
import urllib3
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from backend_spark.console.oidc.settings import OidcSection, is_protected
from service_runtime.decoding import DECODE_ERRORS, decode_json
from service_runtime.errors import YamamoriError

KEEP_S: Final = 3600.0
"""How long metadata and keys are used before they are read again."""

RENEW_KEYS_S: Final = 30.0
"""Least time between two readings of the keys: tokens with unknown keys are free."""

MAX_ANSWER_BYTES: Final = 256 * 1024
TIMEOUT: Final = urllib3.Timeout(connect=3.0, read=5.0)
WELL_KNOWN: Final = "/.well-known/openid-configuration"

T = TypeVar("T")


class SignInError(YamamoriError):
    """A sign-in by the provider failed.

    Attributes:
        reason: For the page: ``away``, ``refused``, ``late``, ``invalid``, ``name``,
            ``role`` or ``full``.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Metadata(msgspec.Struct, frozen=True):
    """What the console uses of the discovery document."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    authorization_response_iss_parameter_supported: bool = False
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class TokenAnswer(msgspec.Struct, frozen=True):
    """What the console uses of the answer to a code."""

    id_token: str


class KeyDocument(msgspec.Struct, frozen=True):
    """Keys of the provider."""

    keys: list[dict[str, Any]]


@dataclass
class OpenidProvider:
    """The provider of the settings; for several threads.

    Attributes:
        section: Its settings.
        secret: Of the console at the provider; empty for a public client.
    """

    section: OidcSection
    secret: str
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _metadata: tuple[float, Metadata] | None = None
    _keys: tuple[float, KeySet] | None = None

    def __post_init__(self) -> None:
        """Open no connection: the console starts while the provider is away."""
        self._pool = urllib3.PoolManager(
            ca_certs=self.section.ca, cert_reqs="CERT_REQUIRED", maxsize=4
        )

    def metadata(self, now_s: float) -> Metadata:
        """The discovery document, at most an hour old.

        Raises:
            SignInError: The provider is away, or the document is another's.
        """
        known = self._metadata
        if known is not None and 0 <= now_s - known[0] < KEEP_S:
            return known[1]
        url = self.section.issuer.removesuffix("/") + WELL_KNOWN
        found = _decoded(self._request("GET", url), Metadata, url)
        if found.issuer != self.section.issuer:
            rule = f"console.oidc.issuer must be the issuer of {url}"
            raise SignInError("away", f"{rule}, got {found.issuer!r}")
        for each in (
            found.authorization_endpoint,
            found.token_endpoint,
            found.jwks_uri,
        ):
            if not is_protected(each):
                raise SignInError("away", f"endpoints must be https, got {each!r}")
        self._metadata = now_s, found
        return found

    def keys(self, now_s: float, *, renew: bool = False) -> KeySet:
        """Keys of the signatures of ID tokens.

        Args:
            now_s: Unix time.
            renew: A token has an unknown key: read them again, but not too often.

        Raises:
            SignInError: The provider is away, or has no usable key.
        """
        url = self.metadata(now_s).jwks_uri
        with self._lock:
            known = self._keys
            keep_s = RENEW_KEYS_S if renew else KEEP_S
            if known is not None and 0 <= now_s - known[0] < keep_s:
                return known[1]
            document = _decoded(self._request("GET", url), KeyDocument, url)
            # A shared secret among public keys would be known to everyone.
            public = [each for each in document.keys if each.get("kty") != "oct"]
            try:
                found = KeySet.import_key_set({"keys": public})
            except (JoseError, ValueError, KeyError, TypeError) as error:
                text = f"{url} must have the keys of the provider: {error}"
                raise SignInError("away", text) from error
            self._keys = now_s, found
        return found

    def exchange(self, code: str, verifier: str, redirect: str, now_s: float) -> str:
        """Exchange the code that the browser brought for an ID token.

        Args:
            code: Of the authorization response; the provider accepts it once.
            verifier: Whose digest began the sign-in (PKCE).
            redirect: Address that the code was sent to.
            now_s: Unix time.

        Raises:
            SignInError: The provider is away or refuses the code.
        """
        metadata = self.metadata(now_s)
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect,
            "client_id": self.section.client_id,
            "code_verifier": verifier,
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if self.secret:
            methods = metadata.token_endpoint_auth_methods_supported
            if "client_secret_basic" in methods:
                headers["Authorization"] = self._basic()
            else:
                form["client_secret"] = self.secret
        url = metadata.token_endpoint
        answer = self._request("POST", url, urlencode(form), headers)
        return _decoded(answer, TokenAnswer, url).id_token

    def _basic(self) -> str:
        pair = f"{quote_plus(self.section.client_id)}:{quote_plus(self.secret)}"
        return "Basic " + base64.b64encode(pair.encode()).decode()

    def _request(
        self,
        method: str,
        url: str,
        body: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        try:
            answer = self._pool.request(
                method,
                url,
                body=body,
                headers={"Accept": "application/json"} | (headers or {}),
                timeout=TIMEOUT,
                retries=False,  # nor redirects
                preload_content=False,
            )
            with answer:
                content = answer.read(MAX_ANSWER_BYTES + 1)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise SignInError("away", f"{url} does not answer: {error}") from error
        if answer.status in {400, 401} and method == "POST":
            words = content[:200].decode(errors="replace")
            raise SignInError("refused", f"{url} refuses the code: {words}")
        if answer.status != 200 or len(content) > MAX_ANSWER_BYTES:  # noqa: PLR2004
            text = f"{url} must answer 200 with at most {MAX_ANSWER_BYTES} bytes"
            raise SignInError("away", f"{text}, got {answer.status}")
        return content


def _decoded(content: bytes, form: type[T], url: str) -> T:
    try:
        return decode_json(content, form)
    except DECODE_ERRORS as error:
        text = f"{url} must answer with a {form.__name__}: {error}"
        raise SignInError("away", text) from error
