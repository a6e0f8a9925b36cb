"""HTTP of the console: JSON answers and bodies, proxies, security headers."""

import asyncio
import gzip
import hashlib
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar, cast

import msgspec
from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from service_runtime.decoding import DECODE_ERRORS, decode_json
from service_runtime.errors import shortened

SECURITY_HEADERS: Final = {
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
"""Only the console's own files are loaded, and no other site may frame its pages."""

STRICT_TRANSPORT: Final = {"Strict-Transport-Security": "max-age=31536000"}
"""Over https: browsers do not use http for a year."""

COMPRESSION: Final = 6
"""Of `Packed` and `packed_stream`; twice the time of level 3, and 8 % smaller."""

STREAM_MEMORY: Final = (zlib.DEFLATED, 16 + 12, 5)
"""Arguments of zlib for gzip in 32 kB of memory; in 256 kB a stream is no smaller."""

MAX_PROBLEM_CHARS: Final = 250
MAX_BODY_BYTES: Final = 64 * 1024
MAX_WHY_LENGTH: Final = 500

T = TypeVar("T")


class HeadersMiddleware:
    """Adds fixed headers to every answer, including streams and errors."""

    def __init__(self, app: ASGIApp, headers: dict[str, str]) -> None:
        self._app = app
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._headers)
                if scope["scheme"] == "https":
                    headers.update(STRICT_TRANSPORT)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class ProxyMiddleware(ProxyHeadersMiddleware):
    """Takes client address and scheme from the headers of trusted proxies only."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - uvicorn and Starlette name these types differently
        """Serve one request."""
        client = scope.get("client")
        if client is not None:
            scope.setdefault("state", {})["is_proxied"] = (
                client[0] in self.trusted_hosts
            )
        await super().__call__(scope, receive, send)


def came_from_proxy(request: Request) -> bool:
    """Whether a trusted proxy sent the request."""
    return getattr(request.state, "is_proxied", False)


def security_headers(tiles_origin: str | None) -> dict[str, str]:
    """Headers of every answer; map tiles may come from one more origin."""
    origin = f" {tiles_origin}" if tiles_origin else ""
    return {
        name: value.replace("{tiles}", origin)
        for name, value in SECURITY_HEADERS.items()
    }


def service_root(path: str) -> Callable[[Request], str]:
    """Make a dependency for the address of a service, as the client reached it.

    Args:
        path: Of the service, such as ``/ogc``.
    """

    def read_root(request: Request) -> str:
        return f"{request.base_url}".rstrip("/") + path

    return read_root


def set_cookie(
    answer: Response, request: Request, name: str, value: str, age_s: int | None = None
) -> None:
    """Set a cookie that neither scripts nor other sites can use."""
    answer.set_cookie(
        name,
        value,
        max_age=age_s,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )


def json_response(value: object, status: int = 200) -> Response:
    """An answer in JSON that is not cached."""
    return encoded_response(msgspec.json.encode(value), status)


def encoded_response(encoded: bytes, status: int = 200) -> Response:
    """An answer that is encoded as JSON already."""
    return Response(
        encoded,
        status,
        media_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


class Packed:
    """Content that is compressed once for all answers.

    Args:
        content: Uncompressed.
        media_type: Its type.
        is_kept: Whether browsers may keep it, and ask whether it has changed.
    """

    def __init__(
        self, content: bytes, media_type: str, *, is_kept: bool = True
    ) -> None:
        self._packed = gzip.compress(content, COMPRESSION, mtime=0)
        self._media_type = media_type
        self._headers = {
            "Cache-Control": "no-cache" if is_kept else "no-store",
            "Vary": "Accept-Encoding",
        }
        if is_kept:
            self._headers["ETag"] = f'"{hashlib.sha256(content).hexdigest()[:32]}"'

    @property
    def content(self) -> bytes:
        """Uncompressed."""
        return gzip.decompress(self._packed)

    def response(self, request: Request) -> Response:
        """The answer to a request."""
        headers = dict(self._headers)
        etag = headers.get("ETag")
        if etag is not None and etag in request.headers.get("If-None-Match", ""):
            return Response(status_code=304, headers=headers)
        is_packed = "gzip" in request.headers.get("Accept-Encoding", "")
        if is_packed:
            headers["Content-Encoding"] = "gzip"
        content = self._packed if is_packed else self.content
        return Response(content, media_type=self._media_type, headers=headers)


async def packed_stream(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Compress a stream with gzip; its reader can read each part when it arrives."""
    packer = zlib.compressobj(COMPRESSION, *STREAM_MEMORY)

    def pack(part: bytes) -> bytes:
        return packer.compress(part) + packer.flush(zlib.Z_SYNC_FLUSH)

    async for part in parts:
        yield await asyncio.to_thread(pack, part)
    yield packer.flush()


def json_body(form: type[T]) -> Callable[[Request], Awaitable[T]]:
    """Make a dependency that decodes the body of a request.

    Args:
        form: A msgspec struct.

    Raises:
        HTTPException: 413 if the body is too long, 422 if it does not match the form;
            raised by the dependency.
    """

    async def read_body(request: Request) -> T:
        raw = await read_bounded(request, MAX_BODY_BYTES)
        try:
            return decode_json(raw, form)
        except DECODE_ERRORS as error:
            problem = str(error)  # of an unknown choice it has the whole value
            if len(problem) > MAX_PROBLEM_CHARS:
                problem = f"{problem[:100]}... {problem[-100:]}"
            rule = f"the request must be a {form.__name__}"
            raise HTTPException(422, f"{rule}: {problem}") from error

    return read_body


def check_why(why: str, *, is_needed: bool = True) -> None:
    """Check the reason that a user gives for a change.

    Raises:
        HTTPException: 422 if it is too long, or missing although it is needed.
    """
    if not int(is_needed) <= len(why.strip()) <= MAX_WHY_LENGTH:
        least = "1 to" if is_needed else "at most"
        rule = f"why must be {least} {MAX_WHY_LENGTH} characters long"
        raise HTTPException(422, rule)


async def read_bounded(request: Request, max_bytes: int) -> bytes:
    """Body of a request.

    Raises:
        HTTPException: 413 if it is longer than `max_bytes`, 400 if it has no end.
    """
    raw = bytearray()
    try:
        async for part in request.stream():
            raw += part
            if len(raw) > max_bytes:
                rule = f"a request must be at most {max_bytes} bytes"
                raise HTTPException(413, rule)
    except ClientDisconnect as error:  # no traceback in the log for each of them
        raise HTTPException(400, "the request has no end") from error
    return bytes(raw)


async def validation_error(_request: Request, error: Exception) -> Response:
    """Answer to a path or a query that breaks a rule: one sentence, as elsewhere."""
    problems = [
        f"{each['loc'][-1]}: {each['msg']}, got {shortened(each.get('input'))}"
        for each in cast("RequestValidationError", error).errors()
    ]
    return json_response({"detail": "; ".join(problems)}, 422)
