"""HTTP of the console: JSON answers and bodies, proxies, headers, bounded connections.

Uvicorn has no time limit for the head and the body of a request, and its
``limit_concurrency`` would refuse honest clients while half requests hold all places.
"""

import asyncio
import gzip
import hashlib
import logging
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar, cast

import h11
import msgspec
from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from service_runtime.decoding import DECODE_ERRORS, decode_json
from service_runtime.errors import shortened

log = logging.getLogger(__name__)

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

MAX_CONNECTIONS: Final = 400
"""With what waits in the backlog well below 1,024 open files, the usual limit."""

SHARED_PLACES: Final = 300
"""The places beyond these are taken only while no connection waits for its client."""

BACKLOG: Final = 128
CLIENT_TIMEOUT_S: Final = 20.0
"""Time for a whole request, and for reading the next `MIN_READ_BYTES` of an answer."""

MIN_READ_BYTES: Final = 16 * 1024
MAX_HEAD_BYTES: Final = 16 * 1024
"""Largest head of a request."""

WARNING_INTERVAL_S: Final = 60.0


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


class BoundedProtocol(H11Protocol):
    """One connection; it is closed when its client keeps it waiting.

    When the shared places are taken, a new connection takes that of the one whose
    client has kept it waiting longest: a half or an idle one, or else one that reads
    slowly. While none waits, the number grows to `MAX_CONNECTIONS`; each answer then
    announces that its connection ends.
    """

    _warned_s = -WARNING_INTERVAL_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - uvicorn's
        super().__init__(*args, **kwargs)
        self._timer: asyncio.TimerHandle | None = None
        self._waiting_since_s = 0.0
        self._unread_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, if there is a place for it."""
        super().connection_made(transport)
        if len(self.connections) > SHARED_PLACES:
            self._make_room()
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        super().data_received(data)
        if len(self.connections) > SHARED_PLACES:
            self._announce_end()
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """Wait until the client reads."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """Go on with the answer."""
        super().resume_writing()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._stop_timer()

    def eviction_order(self) -> tuple[bool, float] | None:
        """Sort key among connections that wait for their clients; None if it works."""
        if self._timer is None:
            return None
        return not self._is_reading(), self._waiting_since_s

    def evict(self) -> None:
        """Close it at once for another one."""
        self.transport.abort()
        # Lost only in the loop's next round; until then it must not be chosen again.
        self._stop_timer()
        self.connections.discard(self)

    def _announce_end(self) -> None:
        """Let the client open a new connection for its next request.

        It would send it on this one, and find it closed. Uvicorn repeats the header of
        a request in its answer.
        """
        cycle: RequestResponseCycle | None = self.cycle  # None before any request
        if cycle is not None and not cycle.response_started:
            headers = list(cycle.scope["headers"])
            if CLOSE_HEADER not in headers:  # else once for each part of the body
                cycle.scope["headers"] = [*headers, CLOSE_HEADER]

    def _is_reading(self) -> bool:
        """Whether the rest of a request, or the next one, has not arrived."""
        return self.conn.their_state in {h11.IDLE, h11.SEND_BODY}

    def _watch(self) -> None:
        """Start the timer when the connection begins to wait for its client."""
        is_waiting = self._is_reading() or self.flow.write_paused
        if not is_waiting or self.transport.is_closing():
            self._stop_timer()
        elif self._timer is None:
            self._waiting_since_s = self.loop.time()
            self._start_timer()

    def _start_timer(self) -> None:
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._timer = self.loop.call_later(CLIENT_TIMEOUT_S, self._time_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        read_bytes = self._unread_bytes - self.transport.get_write_buffer_size()
        if self.flow.write_paused and read_bytes >= MIN_READ_BYTES:
            self._start_timer()
        else:
            self.transport.abort()

    def _make_room(self) -> None:
        """Close the connection whose client has kept it waiting longest."""
        others = (cast("BoundedProtocol", each) for each in self.connections)
        waiting = {each: key for each in others if (key := each.eviction_order())}
        if waiting:
            min(waiting, key=waiting.__getitem__).evict()
        elif len(self.connections) > MAX_CONNECTIONS:
            self.evict()
        else:
            return
        if self.loop.time() - BoundedProtocol._warned_s >= WARNING_INTERVAL_S:
            BoundedProtocol._warned_s = self.loop.time()
            log.warning("more than %d connections are open; closed one", SHARED_PLACES)
