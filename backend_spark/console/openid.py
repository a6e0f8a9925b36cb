"""Sign-in by an OpenID provider: the provider, its ID tokens, and the way to the user.

The browser carries what belongs to a sign-in (state, nonce and PKCE verifier) in a
signed cookie, so that an attacker who begins sign-ins fills nothing in the console.
Sources: OpenID Connect Discovery 1.0, sections 3 and 4; OpenID Connect Core 1.0,
section 3.1; RFC 6749, sections 2.3.1 and 4.1.3; RFC 7636 (PKCE); RFC 9207.
"""

import base64
import hashlib
import hmac
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote_plus, urlencode

import msgspec
import urllib3
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet, OctKey
from joserfc.jws import JWSRegistry
from joserfc.jwt import JWTClaimsRegistry

from backend_spark.console.accounts import ROLES, check_account_name
from backend_spark.console.notifications.channels import read_secret
from backend_spark.console.settings import (
    BEGIN,
    CALLBACK,
    OidcSection,
    is_protected,
)
from service_runtime.decoding import DECODE_ERRORS, decode_json
from service_runtime.errors import FieldError, YamamoriError, shortened
from service_runtime.lifecycle import LogLimit

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


PENDING_S: Final = 600.0
"""Time for a user to enter name, password and code at the provider."""

MAX_TEXT: Final = 4096
"""Characters of a parameter of the provider's answer."""


@dataclass(frozen=True)
class BegunSignIn:
    """What the browser gets at the beginning.

    Attributes:
        url: Of the provider.
        cookie: Belongs to this sign-in and this browser.
    """

    url: str
    cookie: str


@dataclass(frozen=True)
class OidcSignIn:
    """Signs users in by the provider.

    Attributes:
        provider: The provider.
        address: Of the console's pages, with a slash at its end.
        signing_key: Key of the cookies.
        token: Makes an unguessable text of 43 characters or more.
        log_limit: Limits the lines about failures, which anyone can cause.
    """

    provider: OpenidProvider
    address: str
    signing_key: bytes
    token: Callable[[], str]
    log_limit: LogLimit

    @classmethod
    def open(
        cls,
        section: OidcSection,
        address: str,
        signing_key: bytes,
        token: Callable[[], str],
        log_limit: LogLimit,
    ) -> "OidcSignIn":
        """Open it by its settings; the provider may be away.

        Args:
            section: The settings.
            address: The setting ``console.address``.
            signing_key: Of the console; a key of its own is derived.
            token: See the class.
            log_limit: See the class.

        Raises:
            FieldError: A file of the settings cannot be read.
        """
        secret = ""
        if section.client_secret_file is not None:
            secret = _checked_secret(section.client_secret_file)
        if section.ca is not None and not Path(section.ca).is_file():
            rule = "a file of certificates (PEM)"
            raise FieldError("console.oidc.ca", rule, section.ca)
        derived = hmac.digest(signing_key, b"sign-in by OpenID", hashlib.sha256)
        place = address.removesuffix("/") + "/"
        return cls(OpenidProvider(section, secret), place, derived, token, log_limit)

    @property
    def redirect(self) -> str:
        """Address that the provider sends the browser back to."""
        return self.address + CALLBACK

    @property
    def begin_url(self) -> str:
        """Where a browser begins: at the address that it will be sent back to."""
        return self.address + BEGIN

    def begin(self, now_s: float) -> BegunSignIn:
        """Begin a sign-in.

        Raises:
            SignInError: The provider is away.
        """
        metadata = self.provider.metadata(now_s)
        state, nonce, verifier = self.token(), self.token(), self.token()
        digest = hashlib.sha256(verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self.provider.section.client_id,
            "redirect_uri": self.redirect,
            "scope": " ".join(self.provider.section.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        pending = {
            "state": state, "nonce": nonce, "verifier": verifier,
            "exp": int(now_s + PENDING_S),
        }  # fmt: skip
        cookie = jwt.encode({"alg": "HS256"}, pending, self._cookie_key())
        joint = "&" if "?" in metadata.authorization_endpoint else "?"
        url = metadata.authorization_endpoint + joint + urlencode(query)
        return BegunSignIn(url, cookie)

    def finish(
        self, answer: Mapping[str, str], cookie: str, now_s: float
    ) -> OpenidUser:
        """Finish a sign-in with the answer that the browser brought.

        Args:
            answer: Parameters of the authorization response.
            cookie: Of `begin`; empty if the browser has none.
            now_s: Unix time.

        Raises:
            SignInError: The answer does not belong to this browser, or the provider
                or the console refuses the user, or the provider is away.
        """
        pending = self._pending(cookie, now_s)
        if any(len(each) > MAX_TEXT for each in answer.values()):
            raise SignInError("invalid", "the provider's answer is too long")
        if not hmac.compare_digest(
            answer.get("state", "").encode(), pending["state"].encode()
        ):
            raise SignInError("late", "state must be that of this browser's sign-in")
        metadata = self.provider.metadata(now_s)
        is_named = metadata.authorization_response_iss_parameter_supported
        if answer.get("iss", None if is_named else metadata.issuer) != metadata.issuer:
            raise SignInError("invalid", f"iss must be {metadata.issuer}")
        if "error" in answer or not answer.get("code"):
            words = shortened(answer.get("error", "no code"))
            raise SignInError("refused", f"the provider refused the sign-in: {words}")
        verifier = pending["verifier"]
        token = self.provider.exchange(answer["code"], verifier, self.redirect, now_s)
        return read_id_token(token, pending["nonce"], self.provider, now_s)

    def _pending(self, cookie: str, now_s: float) -> dict[str, str]:
        try:
            found = jwt.decode(cookie, self._cookie_key(), algorithms=["HS256"])
            JWTClaimsRegistry(now=int(now_s), exp={"essential": True}).validate(
                found.claims
            )
        except (JoseError, ValueError, TypeError) as error:
            text = f"the sign-in must begin in this browser, within 10 minutes: {error}"
            raise SignInError("late", text) from error
        return found.claims

    def _cookie_key(self) -> OctKey:
        return OctKey.import_key(self.signing_key)


def _checked_secret(path: str) -> str:
    try:
        return read_secret(Path(path))
    except FieldError as error:
        rule = "a file whose first line is the secret"
        raise FieldError(
            "console.oidc.client_secret_file", rule, path, str(error)
        ) from error
