"""How the server answers: JSON, errors in words, and headers that keep pages safe."""

from typing import Final

import msgspec
from fastapi import HTTPException, Response
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SAFE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; "
    "style-src 'self'; img-src 'self' data: blob:{tiles}; connect-src 'self'{tiles}; "
    "worker-src 'self'; font-src 'self'; manifest-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
"""Nothing but our own files runs or is shown; nobody frames us."""


class Headed:
    """Puts headers on every answer, streams too."""

    def __init__(self, app: ASGIApp, headers: dict[str, str]) -> None:
        self._app = app
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        await self._app(scope, receive, headed)


def json(value: object, status: int = 200) -> Response:
    """An answer for programs."""
    return ready(msgspec.json.encode(value), status)


def ready(encoded: bytes, status: int = 200) -> Response:
    """An answer that is JSON already."""
    return Response(
        encoded,
        status,
        media_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


def refuse(status: int, words: str) -> HTTPException:
    """An error that says what to do."""
    return HTTPException(status, words)


def safe_headers(tiles_origin: str | None) -> dict[str, str]:
    """Headers of every answer; tiles may come from one place more."""
    origin = f" {tiles_origin}" if tiles_origin else ""
    return {
        name: value.replace("{tiles}", origin) for name, value in SAFE_HEADERS.items()
    }
