"""A sign-in by the provider: from the login page to the user's identity.

The browser carries what belongs to a sign-in (state, nonce and PKCE verifier) in a
signed cookie, so that an attacker who begins sign-ins fills nothing in the console.
Source: OpenID Connect Core 1.0, section 3.1; RFC 7636; RFC 9207.
"""

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OctKey
from joserfc.jwt import JWTClaimsRegistry

from backend_spark.console.notifications.channels import read_secret
from backend_spark.console.oidc.id_token import OpenidUser, read_id_token
from backend_spark.console.oidc.provider import OpenidProvider, SignInError
from backend_spark.console.oidc.settings import BEGIN, CALLBACK, OidcSection
from service_runtime.errors import FieldError, shortened
from service_runtime.log_limit import LogLimit

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
