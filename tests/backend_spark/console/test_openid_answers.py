"""What an OpenID provider, or someone in its place, may answer to the console."""

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from trust_bench import IssuingAuthority

from backend_spark.console.openid import (
    MAX_ANSWER_BYTES,
    WELL_KNOWN,
    OpenidProvider,
    SignInError,
)
from backend_spark.console.settings import OidcSection
from service_runtime.tls import TlsFiles

Serve = Callable[[dict[str, Any]], str]
"""Serves answers by path, each a document, or status and bytes; returns the URL."""


class AnswerServer(ThreadingHTTPServer):
    """A server of fixed answers, over TLS."""

    def __init__(self, tls: TlsFiles, answers: dict[str, Any]) -> None:
        self.answers = answers
        super().__init__(("127.0.0.1", 0), AnswerHandler)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(str(tls.certificate), tls.key)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self.server_port}"


class AnswerHandler(BaseHTTPRequestHandler):
    """Sends the answer of the path."""

    server: AnswerServer

    def do_GET(self) -> None:
        found = self.server.answers.get(self.path, {})
        status, body = found if isinstance(found, tuple) else (200, json.dumps(found))
        self.send_response(status)
        self.send_header("Location", f"{self.server.url}/elsewhere")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> IssuingAuthority:
    """An authority of the municipality, which no machine trusts by itself."""
    return IssuingAuthority(tmp_path_factory.mktemp("ca") / "ca")


@pytest.fixture
def serve(authority: IssuingAuthority) -> Iterator[Serve]:
    """Function that serves answers."""
    tls = authority.issue("broker", "login", hosts=("127.0.0.1",))
    with ExitStack() as stack:

        def start(answers: dict[str, Any]) -> str:
            server = stack.enter_context(AnswerServer(tls, answers))
            thread = threading.Thread(target=server.serve_forever, args=(0.05,))
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return server.url

        yield start


def document(issuer: str, **more: object) -> dict[str, object]:
    names = ("authorization_endpoint", "token_endpoint", "jwks_uri")
    return {"issuer": issuer, **{n: f"{issuer}/{n}" for n in names}, **more}


def provider_at(url: str, ca: Path | None) -> OpenidProvider:
    section = OidcSection(
        issuer=url, client_id="c", chiefs=("x",), ca=str(ca) if ca else None
    )
    return OpenidProvider(section, "")


def test_certificate_must_be_of_a_trusted_authority(
    serve: Serve, authority: IssuingAuthority
) -> None:
    """Otherwise somebody in between could sign tokens with keys of their own."""
    answers: dict[str, Any] = {}
    url = serve(answers)
    answers[WELL_KNOWN] = document(url)
    trusted = provider_at(url, authority.folder.path / "ca.pem")

    assert trusted.metadata(time.time()).token_endpoint == f"{url}/token_endpoint"
    with pytest.raises(SignInError, match="CERTIFICATE_VERIFY_FAILED"):
        provider_at(url, None).metadata(time.time())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((302, ""), "must answer 200"),
        ((500, "{}"), "must answer 200"),
        ((200, " " * (MAX_ANSWER_BYTES + 1)), "at most 262144 bytes"),
        ((200, "not JSON"), "must answer with a Metadata"),
        ((200, "[" * 9999), "must answer with a Metadata"),
        ({"token_endpoint": "http://login.example/token"}, "endpoints must be https"),
        ({"authorization_endpoint": "javascript:x"}, "endpoints must be https"),
        ({"jwks_uri": "file:///etc/passwd"}, "endpoints must be https"),
        ({"issuer": "https://login.evil.example"}, "must be the issuer of"),
    ],
    ids=range(9),
)
def test_wrong_discovery_document_is_refused(
    serve: Serve, authority: IssuingAuthority, answer: object, words: str
) -> None:
    """It decides where secrets are sent; a redirect is not followed."""
    answers: dict[str, Any] = {}
    url = serve(answers)
    answers["/elsewhere"] = document(url)
    answers[WELL_KNOWN] = answer
    if isinstance(answer, dict):
        answers[WELL_KNOWN] = document(url) | answer
    provider = provider_at(url, authority.folder.path / "ca.pem")

    with pytest.raises(SignInError, match=words) as refused:
        provider.metadata(time.time())
    assert refused.value.reason == "away"


@pytest.mark.parametrize(
    "keys",
    [
        [],
        [{"kty": "oct", "k": "c2VjcmV0"}],
        [{"kty": "new"}],
        [{"kty": "RSA"}],
        [{"kty": "RSA", "n": 5, "e": "AQAB"}],
        [{}],
    ],
    ids=range(6),
)
def test_keys_that_verify_nothing_are_refused(
    serve: Serve, authority: IssuingAuthority, keys: list[dict[str, object]]
) -> None:
    """A shared secret that is published would let everyone sign."""
    answers: dict[str, Any] = {"/jwks_uri": {"keys": keys}}
    url = serve(answers)
    answers[WELL_KNOWN] = document(url)
    provider = provider_at(url, authority.folder.path / "ca.pem")

    with pytest.raises(SignInError, match="must have the keys of the provider"):
        provider.keys(time.time())
