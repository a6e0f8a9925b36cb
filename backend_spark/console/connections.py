"""Limits on connections: their number, and how long a client may keep one waiting.

Uvicorn has no time limit for the head and the body of a request, and its
``limit_concurrency`` would refuse honest clients while half requests hold all places.
"""

import asyncio
import logging
from typing import Any, Final, cast

import h11
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

log = logging.getLogger(__name__)

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
