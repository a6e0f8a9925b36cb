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
from spatial_mqtt.transport import ConnectionHandler, Incoming, Publication, Session

log = logging.getLogger(__name__)

LOOK_S = 1.0
SILENCE_S = 60.0
MOST_HELD = 4
"""So many certificates that count may have one name: a wish may be lost on the way,
and a thief may not fill the register."""

Connect = Callable[[Session, ConnectionHandler], Connection]


class Signer:
    """Serves one authority on one broker.

    Args:
        folder: The authority.
        name: Of our own certificate, for the session.
        connect: Makes the connection.
        wall_s: Unix time.
        life_s: How long what we give counts.
        pulse: Listens to our loop.
    """

    def __init__(
        self,
        folder: Folder,
        name: str,
        connect: Connect,
        wall_s: Callable[[], float],
        *,
        life_s: float,
        pulse: Pulse,
    ) -> None:
        self._folder = folder
        self._wall_s = wall_s
        self._life_s = life_s
        self._pulse = pulse
        self._asked: SimpleQueue[Incoming | None] = SimpleQueue()
        self._given = 0
        self._is_subscribed = False
        self._connection = connect(Session(name, ((RENEWALS, 1),)), self)

    def run(self) -> None:
        """Serve until `stop`."""
        self._connection.start()
        with self._pulse.expects("signer", SILENCE_S) as beat:
            while True:
                beat()
                try:
                    asked = self._asked.get(timeout=LOOK_S)
                except Empty:
                    continue
                if asked is None:
                    return
                self._serve(asked)

    def stop(self) -> None:
        """End `run`."""
        self._connection.stop()
        self._asked.put(None)

    @property
    def is_up(self) -> bool:
        """Whether requests reach us now."""
        return self._is_subscribed and self._connection.is_up

    def status(self) -> str:
        """One line for a person."""
        state = "up" if self.is_up else "DOWN"
        return f"{self._connection.endpoint} {state}; {self._given} renewed"

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """See `ConnectionHandler`."""

    def on_down(self, reason: str) -> None:
        self._is_subscribed = False
        log.warning("signer's broker is gone: %s", reason)

    def on_message(self, message: Incoming) -> None:
        self._asked.put(message)

    def on_published(self, token: int, refused: str | None) -> None:
        """See `ConnectionHandler`."""

    def on_subscribed(self) -> None:
        self._is_subscribed = True
        log.info("signer is up on %s", self._connection.endpoint)

    def _serve(self, asked: Incoming) -> None:
        try:
            request = Request.decode(asked.payload)
            name = self._holder(request, asked.topic)
        except (FieldError, RefusedError) as error:
            # Nobody is answered whose name is not sure.
            log.warning("not renewed on %s: %s", asked.topic, error)
            return
        try:
            answer = Answer(certificate=self._renewed(request, name))
            self._given += 1
            log.info("renewed the certificate of %s", name)
        except (FieldError, RefusedError) as error:
            log.warning("not renewed for %s: %s", name, error)
            answer = Answer(refused=str(error))
        self._connection.publish(Publication(renewed_topic(name), answer.encode()))

    def _holder(self, request: Request, topic: str) -> str:
        """The name of who asks, once it is proven."""
        name = name_of(request.old)
        if not self._folder.authority().has_signed(request.old):
            raise RefusedError("the old certificate is of another authority")
        if topic != renewal_topic(name):
            raise RefusedError(f"the old certificate is of {name!r}")
        _ = request.key  # raises unless both keys have signed
        return name

    def _renewed(self, request: Request, name: str) -> bytes:
        now_s, register = self._wall_s(), self._folder.register()
        _check_old(request.old, register, now_s)
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
        pem = self._folder.issue(held[-1].identity, request.key, self._life_s)
        return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


def _check_old(old: x509.Certificate, register: Register, now_s: float) -> None:
    line = register.find(f"{old.serial_number:x}")
    if line is None:
        raise RefusedError("the register does not know the old certificate")
    if line.revoked_s is not None:
        raise RefusedError("the old certificate was revoked")
    if line.until_s <= now_s:
        raise RefusedError("the old certificate has ended; a new one needs a visit")
