"""Certificate renewal service: answers renewal requests on a Manager's broker.

The requester must hold a valid certificate. The new one has the same name and areas;
neither can be requested.
"""

import logging
from collections.abc import Callable
from queue import Empty, SimpleQueue

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from gateway_daemon.ca.authority import RefusedError, Register, name_of
from gateway_daemon.ca.store import Folder
from service_runtime.errors import FieldError
from service_runtime.watchdog import Pulse
from spatial_mqtt.certificate_renewal import Answer, Request
from spatial_mqtt.connection import Connection
from spatial_mqtt.topics import RENEWALS, renewal_topic, renewed_topic
from spatial_mqtt.transport import (
    BaseConnectionHandler,
    ConnectionHandler,
    Incoming,
    Publication,
    Session,
)

log = logging.getLogger(__name__)

LOOK_S = 1.0
SILENCE_S = 60.0
MOST_HELD = 4
"""Valid certificates per name: an answer may be lost on the way, but an attacker must
not fill the register."""

Connect = Callable[[Session, ConnectionHandler], Connection]


class Signer(BaseConnectionHandler):
    """Serves one authority on one broker.

    Args:
        folder: The authority.
        name: Of our own certificate, for the session.
        connect: Makes the connection.
        wall_s: Unix time.
        lifetime_s: Validity of the certificates that are issued.
        watchdog: Supervises the loop.
    """

    def __init__(
        self,
        folder: Folder,
        name: str,
        connect: Connect,
        wall_s: Callable[[], float],
        *,
        lifetime_s: float,
        watchdog: Pulse,
    ) -> None:
        self._folder = folder
        self._wall_s = wall_s
        self._life_s = lifetime_s
        self._pulse = watchdog
        self._requests: SimpleQueue[Incoming | None] = SimpleQueue()
        self._renewed_count = 0
        self._is_subscribed = False
        self._connection = connect(Session(name, ((RENEWALS, 1),)), self)

    def run(self) -> None:
        """Serve until `stop`."""
        self._connection.start()
        with self._pulse.watch_loop("signer", SILENCE_S) as beat:
            while True:
                beat()
                try:
                    request = self._requests.get(timeout=LOOK_S)
                except Empty:
                    continue
                if request is None:
                    return
                self._serve(request)

    def stop(self) -> None:
        """End `run`."""
        self._connection.stop()
        self._requests.put(None)

    @property
    def is_up(self) -> bool:
        """Whether requests reach us."""
        return self._is_subscribed and self._connection.is_up

    def status(self) -> str:
        """One-line summary."""
        state = "up" if self.is_up else "DOWN"
        return f"{self._connection.endpoint} {state}; {self._renewed_count} renewed"

    def on_down(self, reason: str) -> None:
        self._is_subscribed = False
        log.warning("signer's broker is gone: %s", reason)

    def on_message(self, message: Incoming) -> None:
        self._requests.put(message)

    def on_subscribed(self) -> None:
        self._is_subscribed = True
        log.info("signer is up on %s", self._connection.endpoint)

    def _serve(self, message: Incoming) -> None:
        try:
            request = Request.decode(message.payload)
            name = self._holder(request, message.topic)
        except (FieldError, RefusedError) as error:
            # No answer to an unproven name.
            log.warning("not renewed on %s: %s", message.topic, error)
            return
        try:
            answer = Answer(certificate=self._renewed(request, name))
            self._renewed_count += 1
            log.info("renewed the certificate of %s", name)
        except (FieldError, RefusedError) as error:
            log.warning("not renewed for %s: %s", name, error)
            answer = Answer(refused=str(error))
        self._connection.publish(Publication(renewed_topic(name), answer.encode()))

    def _holder(self, request: Request, topic: str) -> str:
        """Return the requester's name after proof of possession of both keys."""
        name = name_of(request.certificate)
        if not self._folder.load_authority().has_issued(request.certificate):
            raise RefusedError("the old certificate is of another authority")
        if topic != renewal_topic(name):
            raise RefusedError(f"the old certificate is of {name!r}")
        _ = request.verified_key  # raises unless both keys have signed
        return name

    def _renewed(self, request: Request, name: str) -> bytes:
        now_s, register = self._wall_s(), self._folder.load_register()
        _check_old(request.certificate, register, now_s)
        held = [
            each
            for each in register.issued
            if each.identity.name == name
            and each.revoked_s is None
            and each.until_s > now_s
        ]
        if len(held) >= MOST_HELD:
            raise RefusedError(
                f"{name} has {len(held)} certificates that count; wait for one to end"
            )
        pem = self._folder.issue(held[-1].identity, request.verified_key, self._life_s)
        return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


def _check_old(old: x509.Certificate, register: Register, now_s: float) -> None:
    issued = register.find(f"{old.serial_number:x}")
    if issued is None:
        raise RefusedError("the register does not know the old certificate")
    if issued.revoked_s is not None:
        raise RefusedError("the old certificate was revoked")
    if issued.until_s <= now_s:
        raise RefusedError("the old certificate has ended; a new one needs a visit")
