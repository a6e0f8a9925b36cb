"""Certificate renewal service: answers renewal requests on a Manager's broker.

The requester must hold a valid certificate that is due. The new one has the same name
and areas; neither can be requested. Each certificate is renewed once.
"""

import logging
import threading
from queue import Empty, SimpleQueue
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding

from gateway_daemon.ca.authority import (
    CertificateRefusedError,
    RenewalContestedError,
    RenewalTooEarlyError,
    common_name,
)
from gateway_daemon.ca.store import AuthorityFolder
from service_runtime.errors import FieldError
from service_runtime.lifecycle import Service
from service_runtime.metrics import Metric, MetricSample, collect_loop_silence
from service_runtime.watchdog import MAX_SILENCE_S, LoopWatchdog
from spatial_mqtt.certificates import RenewalAnswer, RenewalRequest
from spatial_mqtt.topics import RENEWAL_REQUESTS, renewal_answer_topic, renewal_topic
from spatial_mqtt.transport import (
    BaseConnectionHandler,
    Connect,
    IncomingMessage,
    Publication,
    Session,
)

log = logging.getLogger(__name__)

POLL_S = 1.0
LOG_INTERVAL_S = 3600.0
RESULTS: Final = ("renewed", "early", "contested", "refused", "failed")

UNPROVEN: Final = (ValueError, TypeError, UnsupportedAlgorithm)
"""Errors of a request that proves no name: our own, and those of `cryptography`, which
reads names and keys only when they are used."""


class RenewalSigner(BaseConnectionHandler):
    """Serves one authority on one broker.

    Args:
        folder: The authority.
        name: Of our own certificate, for the session.
        connect: Makes the connection.
        lifetime_s: Validity of the certificates that are issued.
        watchdog: Supervises the loop.
    """

    def __init__(
        self,
        folder: AuthorityFolder,
        name: str,
        connect: Connect,
        *,
        lifetime_s: float,
        watchdog: LoopWatchdog,
    ) -> None:
        self._folder = folder
        self._life_s = lifetime_s
        self._watchdog = watchdog
        # One request per topic, hence per certificate: a flood of one waits alone.
        self._turns: SimpleQueue[str | None] = SimpleQueue()
        self._requests: dict[str, IncomingMessage] = {}
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(RESULTS, 0)
        self._logged_s: dict[tuple[str, str], float] = {}
        self._services: tuple[Service, ...] = ()
        self._is_subscribed = False
        self._connection = connect(Session(name, ((RENEWAL_REQUESTS, 1),)), self)

    def run(self) -> None:
        """Serve until `stop`."""
        for service in self._services:
            service.start()
        self._connection.start()
        with self._watchdog.watch_loop("signer", MAX_SILENCE_S) as heartbeat:
            while True:
                heartbeat()
                try:
                    topic = self._turns.get(timeout=POLL_S)
                except Empty:
                    continue
                if topic is None:
                    return
                with self._lock:
                    request = self._requests.pop(topic)
                self._serve(request)

    def stop(self) -> None:
        """End `run`."""
        self._connection.stop()
        for service in self._services:
            service.stop()
        self._turns.put(None)

    @property
    def is_up(self) -> bool:
        """Whether requests reach us."""
        return self._is_subscribed and self._connection.is_up

    def status(self) -> str:
        """One-line summary."""
        state = "up" if self.is_up else "DOWN"
        return f"{self._connection.endpoint} {state}; {self._counts['renewed']} renewed"

    def collect_metrics(self) -> list[Metric]:
        """Prometheus metrics: requests by result."""
        return [
            Metric(
                "yamamori_renewal_requests_total",
                "counter",
                "Requests for renewal, by result.",
                tuple(MetricSample(n, {"result": r}) for r, n in self._counts.items()),
            ),
            *collect_loop_silence(self._watchdog),
        ]

    def attach(self, *services: Service) -> None:
        """Add services that start and stop with the signer."""
        self._services += services

    def on_down(self, reason: str) -> None:
        self._is_subscribed = False
        log.warning("signer's broker is gone: %s", reason)

    def on_message(self, message: IncomingMessage) -> None:
        if message.retain:  # clients ask again; this one would come at each start
            return
        with self._lock:
            if message.topic not in self._requests:
                self._turns.put(message.topic)
            self._requests[message.topic] = message

    def on_subscribed(self) -> None:
        self._is_subscribed = True
        log.info("signer is up on %s", self._connection.endpoint)

    def _serve(self, message: IncomingMessage) -> None:
        try:
            request = RenewalRequest.decode(message.payload)
            name = self._holder(request, message.topic)
        except UNPROVEN as error:
            # No answer to an unproven name.
            self._report_refusal(message.topic, "refused", error)
            return
        except OSError as error:  # also of a token
            self._report_refusal(message.topic, "failed", error)
            return
        try:
            answer = self._renewed(request)
            self._counts["renewed"] += 1
            log.info("renewed the certificate of %s", name)
        except RenewalTooEarlyError as error:
            answer = self._refuse(message.topic, "early", error)
        except RenewalContestedError as error:
            answer = self._refuse(message.topic, "contested", error)
        except (FieldError, CertificateRefusedError) as error:
            answer = self._refuse(message.topic, "refused", error)
        except OSError as error:
            self._report_refusal(message.topic, "failed", error)
            answer = RenewalAnswer(refused="an error of the signer, see its log")
        self._connection.publish(
            Publication(renewal_answer_topic(name), answer.encode())
        )

    def _refuse(self, topic: str, result: str, error: Exception) -> RenewalAnswer:
        self._report_refusal(topic, result, error)
        return RenewalAnswer(refused=str(error))

    def _report_refusal(self, topic: str, result: str, error: Exception) -> None:
        """Count a refusal; log the first of a kind on a topic in an hour."""
        self._counts[result] += 1
        now_s = self._watchdog.clock()
        logged_s = self._logged_s.get((topic, result), -LOG_INTERVAL_S)
        if now_s - logged_s >= LOG_INTERVAL_S:
            self._logged_s[topic, result] = now_s
            is_ours = result in {"contested", "failed"}
            level = logging.ERROR if is_ours else logging.WARNING
            log.log(level, "not renewed on %s: %s", topic, error)

    def _holder(self, request: RenewalRequest, topic: str) -> str:
        """Return the requester's name after proof of possession of both keys."""
        name = common_name(request.certificate)
        if not self._folder.load_authority().has_issued(request.certificate):
            raise CertificateRefusedError("the old certificate is of another authority")
        if topic != renewal_topic(name):
            raise CertificateRefusedError(f"the old certificate is of {name!r}")
        _ = request.verified_key  # raises unless both keys have signed
        return name

    def _renewed(self, request: RenewalRequest) -> RenewalAnswer:
        pem = self._folder.renew(
            request.certificate, request.verified_key, self._life_s
        )
        made, *chain = x509.load_pem_x509_certificates(pem)
        return RenewalAnswer(
            made.public_bytes(Encoding.DER),
            chain=b"".join(each.public_bytes(Encoding.DER) for each in chain),
        )
