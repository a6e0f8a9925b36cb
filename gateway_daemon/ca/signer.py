"""Certificate renewal service: answers renewal requests on a Manager's broker.

The requester must hold a valid certificate. The new one has the same name and areas;
neither can be requested.
"""

import logging
from collections.abc import Callable
from queue import Empty, SimpleQueue

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from gateway_daemon.ca.authority import (
    CertificateRefusedError,
    CertificateRegister,
    common_name,
)
from gateway_daemon.ca.store import AuthorityFolder
from service_runtime.errors import FieldError
from service_runtime.watchdog import LoopWatchdog
from spatial_mqtt.certificate_renewal import RenewalAnswer, RenewalRequest
from spatial_mqtt.connection import Connection
from spatial_mqtt.topics import RENEWAL_REQUESTS, renewal_answer_topic, renewal_topic
from spatial_mqtt.transport import (
    BaseConnectionHandler,
    ConnectionHandler,
    IncomingMessage,
    Publication,
    Session,
)

log = logging.getLogger(__name__)

POLL_S = 1.0
SILENCE_S = 60.0
MAX_CERTIFICATES = 4
"""Valid certificates per name: an answer may be lost on the way, but an attacker must
not fill the register."""

Connect = Callable[[Session, ConnectionHandler], Connection]


class RenewalSigner(BaseConnectionHandler):
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
        folder: AuthorityFolder,
        name: str,
        connect: Connect,
        wall_s: Callable[[], float],
        *,
        lifetime_s: float,
        watchdog: LoopWatchdog,
    ) -> None:
        self._folder = folder
        self._wall_s = wall_s
        self._life_s = lifetime_s
        self._watchdog = watchdog
        self._requests: SimpleQueue[IncomingMessage | None] = SimpleQueue()
        self._renewed_count = 0
        self._is_subscribed = False
        self._connection = connect(Session(name, ((RENEWAL_REQUESTS, 1),)), self)

    def run(self) -> None:
        """Serve until `stop`."""
        self._connection.start()
        with self._watchdog.watch_loop("signer", SILENCE_S) as heartbeat:
            while True:
                heartbeat()
                try:
                    request = self._requests.get(timeout=POLL_S)
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

    def on_message(self, message: IncomingMessage) -> None:
        self._requests.put(message)

    def on_subscribed(self) -> None:
        self._is_subscribed = True
        log.info("signer is up on %s", self._connection.endpoint)

    def _serve(self, message: IncomingMessage) -> None:
        try:
            request = RenewalRequest.decode(message.payload)
            name = self._holder(request, message.topic)
        except (FieldError, CertificateRefusedError) as error:
            # No answer to an unproven name.
            log.warning("not renewed on %s: %s", message.topic, error)
            return
        try:
            answer = RenewalAnswer(certificate=self._renewed(request, name))
            self._renewed_count += 1
            log.info("renewed the certificate of %s", name)
        except (FieldError, CertificateRefusedError) as error:
            log.warning("not renewed for %s: %s", name, error)
            answer = RenewalAnswer(refused=str(error))
        self._connection.publish(
            Publication(renewal_answer_topic(name), answer.encode())
        )

    def _holder(self, request: RenewalRequest, topic: str) -> str:
        """Return the requester's name after proof of possession of both keys."""
        name = common_name(request.certificate)
        if not self._folder.load_authority().has_issued(request.certificate):
            raise CertificateRefusedError("the old certificate is of another authority")
        if topic != renewal_topic(name):
            raise CertificateRefusedError(f"the old certificate is of {name!r}")
        _ = request.verified_key  # raises unless both keys have signed
        return name

    def _renewed(self, request: RenewalRequest, name: str) -> bytes:
        now_s, register = self._wall_s(), self._folder.load_register()
        _check_old(request.certificate, register, now_s)
        held = [
            each
            for each in register.issued
            if each.identity.name == name
            and each.revoked_s is None
            and each.until_s > now_s
        ]
        if len(held) >= MAX_CERTIFICATES:
            raise CertificateRefusedError(
                f"{name} has {len(held)} certificates that count; wait for one to end"
            )
        pem = self._folder.issue(held[-1].identity, request.verified_key, self._life_s)
        return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


def _check_old(
    old: x509.Certificate, register: CertificateRegister, now_s: float
) -> None:
    issued = register.find(f"{old.serial_number:x}")
    if issued is None:
        raise CertificateRefusedError("the register does not know the old certificate")
    if issued.revoked_s is not None:
        raise CertificateRefusedError("the old certificate was revoked")
    if issued.until_s <= now_s:
        raise CertificateRefusedError(
            "the old certificate has ended; a new one needs a visit"
        )
