"""Client for administrators: reads what a Manager publishes and requests changes."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from gateway_daemon.manager.autoscaler import (
    AutoscaleReport,
    DecisionReport,
    decode_autoscale_report,
)
from gateway_daemon.manager.manager import APPLY_TIMEOUT_S, COMPLETE_DELAY_S
from service_runtime.tls import Endpoint, TlsFiles
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import (
    BrokerEntry,
    BrokerTable,
    decode_broker_table,
    decode_gateways,
    find_responsible_broker,
)
from spatial_mqtt.errors import BrokerError, DirectoryError
from spatial_mqtt.topics import (
    BROKER_TABLE,
    COMMAND_CONTENT,
    ERRORS,
    GATEWAY_INFO,
    MANAGER_LOAD,
    covers,
)
from spatial_mqtt.transport import (
    NO_SUBSCRIBERS,
    BaseConnectionHandler,
    IncomingMessage,
    Publication,
    Session,
)

TIMEOUT_S = 10.0
"""How long to wait for each answer."""

CHANGE_TIMEOUT_S = APPLY_TIMEOUT_S + COMPLETE_DELAY_S + TIMEOUT_S
"""A change waits until each gateway has applied the last one or is skipped."""

REFUSAL_WAIT_S = 2.0


class ChangeRefusedError(Exception):
    """The Manager refused a change; the text is its reason."""


@dataclass(frozen=True)
class PublishedDirectory:
    """State published by a Manager.

    Attributes:
        gateways: One entry for each present gateway and each of its areas.
        table: The distributed brokers.
        report: Loads and decisions; None before the first one.
    """

    gateways: tuple[BrokerEntry, ...]
    table: BrokerTable
    report: AutoscaleReport | None = None

    def explain_route(self, topic: str) -> list[str]:
        """Explain which gateway serves a topic and which broker holds it, in lines."""
        near = [e for e in self.gateways if covers(e.topic, topic)]
        near.sort(key=lambda e: len(e.topic), reverse=True)
        holder = find_responsible_broker(self.table.brokers, topic)
        areas = [e.topic for e in self.table.brokers if e.broker_info == holder]
        lines = [
            f"gateway {e.broker_info} serves {e.topic}"
            + (": the closest area" if e.topic == near[0].topic else "")
            for e in near
        ] or ["no gateway's area holds it: its clients go to the nearest area's"]
        if holder is None:
            return [*lines, "no broker holds it: messages wait in the gateways"]
        area = max((a for a in areas if covers(a, topic)), key=len)
        lines.append(f"broker {holder} holds {area}: the closest area")
        decisions = self.report.decisions if self.report else ()
        return lines + [
            format_decision(d) for d in decisions if covers(d.area or "/", topic)
        ]


def format_decision(decision: DecisionReport) -> str:
    """Format a decision with its time in UTC."""
    at = datetime.fromtimestamp(decision.at_ms / 1000, UTC)
    would = "would " if decision.is_dry_run else ""
    return f"{at:%Y-%m-%dT%H:%M:%SZ} autoscale: {would}{decision.text}"


class AdminClient(BaseConnectionHandler):
    """A connection to a Manager's broker; a context manager.

    Args:
        manager: Address of the broker.
        tls: Files for an ``mqtts`` endpoint.
    """

    def __init__(self, manager: Endpoint, tls: TlsFiles | None = None) -> None:
        self._changed = threading.Condition()
        self._gateways: tuple[BrokerEntry, ...] | None = None
        self._table = BrokerTable(0, ())
        self._report: AutoscaleReport | None = None
        self._refusals: list[str] = []
        self._published: dict[int, str | None] = {}
        # The list comes last: without a table there never was a broker.
        filters = ((BROKER_TABLE, 2), (GATEWAY_INFO, 2), (MANAGER_LOAD, 1), (ERRORS, 1))
        session = Session("yamamori-admin", filters)
        self._connection = Connection(manager, session, self, tls)

    def __enter__(self) -> Self:
        """Connect and wait for the published state.

        Raises:
            BrokerError: No Manager answers in time.
        """
        self._connection.start()
        with self._changed:
            is_ready = self._changed.wait_for(
                lambda: self._gateways is not None, TIMEOUT_S
            )
        if not is_ready:
            self._connection.stop()
            reason = self._connection.last_reason or "no manager publishes there"
            raise BrokerError(str(self._connection.endpoint), reason)
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect."""
        self._connection.stop()

    @property
    def directory(self) -> PublishedDirectory:
        """The newest published state."""
        assert self._gateways is not None  # noqa: S101 - __enter__ waited for it
        return PublishedDirectory(self._gateways, self._table, self._report)

    def wait_for_report(self) -> AutoscaleReport:
        """Wait for loads and decisions.

        Raises:
            BrokerError: The Manager publishes none in time.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._report is not None, TIMEOUT_S)
        if self._report is None:
            at = str(self._connection.endpoint)
            raise BrokerError(at, "the manager publishes no loads")
        return self._report

    def request_change(
        self,
        topic: str,
        payload: bytes,
        is_done: Callable[[PublishedDirectory], bool] | None = None,
    ) -> PublishedDirectory:
        """Request a change and wait until it is published.

        Args:
            topic: Of the Manager's API.
            payload: The request.
            is_done: Whether a directory shows the change; None if it shows none, and
                then the absence of a refusal is the answer.

        Raises:
            ChangeRefusedError: The Manager refused it.
            BrokerError: The Manager does not answer in time.
        """
        with self._changed:
            self._refusals.clear()
        self._connection.publish(Publication(topic, payload, content=COMMAND_CONTENT))

        def is_answered() -> bool:
            is_seen = is_done is not None and is_done(self.directory)
            return is_seen or self._refusal(topic) is not None

        wait_s = REFUSAL_WAIT_S if is_done is None else CHANGE_TIMEOUT_S
        with self._changed:
            has_answer = self._changed.wait_for(is_answered, wait_s)
            if not has_answer and is_done is not None:
                reason = (
                    "the manager does not answer, or the change still waits for "
                    "gateways that apply the last one: its status and log name them"
                )
                raise BrokerError(str(self._connection.endpoint), reason)
        if refusal := self._refusal(topic):
            raise ChangeRefusedError(refusal)
        return self.directory

    def publish_all(self, publications: Sequence[Publication]) -> None:
        """Publish retained messages and wait for their acknowledgement.

        Raises:
            BrokerError: The broker does not acknowledge one in time, or refuses it.
        """
        for publication in publications:
            # Without the lock, which `on_published` acquires.
            self._wait_for(self._connection.publish(publication))

    def _wait_for(self, token: int | None) -> None:
        with self._changed:
            self._changed.wait_for(lambda: token in self._published, TIMEOUT_S)
        refused = self._published.get(token or 0, "the broker does not answer")
        if refused not in {None, NO_SUBSCRIBERS}:
            raise BrokerError(str(self._connection.endpoint), str(refused))

    def on_published(self, token: int, refused: str | None) -> None:
        with self._changed:
            self._published[token] = refused
            self._changed.notify_all()

    def on_message(self, message: IncomingMessage) -> None:
        with self._changed:
            try:
                if message.topic == GATEWAY_INFO:
                    self._gateways = decode_gateways(message.payload)
                elif message.topic == BROKER_TABLE:
                    self._table = decode_broker_table(message.payload)
                elif message.topic == MANAGER_LOAD:
                    self._report = decode_autoscale_report(message.payload)
                else:
                    self._refusals.append(message.payload.decode(errors="replace"))
            except DirectoryError as error:
                self._refusals.append(f"{message.topic}: {error}")
            self._changed.notify_all()

    def _refusal(self, topic: str) -> str | None:
        mine = [text for text in self._refusals if text.startswith(f"{topic}: ")]
        return mine[0].removeprefix(f"{topic}: ") if mine else None
