"""Carries out what the autoscaler decides, and tells it to administrators."""

import logging
from collections.abc import Callable, Sequence

import msgspec

from gateway_daemon.load import decode_load
from gateway_daemon.manager.autoscaler import (
    Autoscaler,
    Report,
    carried_out,
    decode_report,
    spare_key,
)
from gateway_daemon.manager.commands import Ran
from gateway_daemon.manager.planner import Decision
from gateway_daemon.manager.rates import Rates
from gateway_daemon.manager.registry import Registry
from spatial_mqtt.directory import BrokerInfo
from spatial_mqtt.endpoint import Endpoint
from spatial_mqtt.errors import FieldError

log = logging.getLogger(__name__)

REPORT_S = 5.0

Run = Callable[[Sequence[str], Decision, Callable[[Ran], object]], object]


class Scaler:
    """One Manager's autoscaler at work.

    Args:
        autoscaler: Decides.
        rates: What brokers count themselves.
        run: Runs a command and tells when it has ended.

    Attributes:
        last: The newest report, ours or another Manager's.
    """

    def __init__(self, autoscaler: Autoscaler, rates: Rates, run: Run) -> None:
        self._autoscaler = autoscaler
        self._rates = rates
        self._run = run
        self._reported_s = -REPORT_S
        self.last: Report | None = None
        self._tell: Callable[[Ran], object] = lambda _: None

    def start(self, tell: Callable[[Ran], object]) -> None:
        """Name who is told when a command has ended; in a thread of its own."""
        self._tell = tell

    def stop(self) -> None:
        """Listen to brokers no longer."""
        self._rates.stop()

    def hear_load(self, payload: bytes, now_s: float) -> None:
        """A gateway told its load.

        Raises:
            DirectoryError: It does not parse.
        """
        self._autoscaler.hear(decode_load(payload), now_s)

    def hear_report(self, payload: bytes) -> None:
        """Another Manager, or we ourselves before, told loads and decisions.

        Raises:
            DirectoryError: It does not parse.
        """
        self.last = decode_report(payload)
        self._autoscaler.adopt(self.last)

    def look(self, registry: Registry, now_s: float, now_ms: int) -> Registry:
        """Decide once; the registry as it shall be.

        Raises:
            DirectoryError: What was decided cannot be carried out any more.
        """
        self._rates.listen_to(entry.broker_info for entry in registry.brokers)
        decision = self._autoscaler.decide(registry, self._rates.per_s(), now_s, now_ms)
        if decision is None:
            return registry
        self._reported_s = now_s - REPORT_S
        if self._autoscaler.scaling.mode == "dry-run":
            log.warning("autoscale would %s", decision)
            return registry
        log.warning("autoscale: %s", decision)
        scaling = self._autoscaler.scaling
        if decision.deed == "start":
            self._autoscaler.is_starting = True
            words = (*scaling.start_command, decision.part, decision.area)
            self._run(words, decision, self._tell)
        if decision.deed == "stop" and scaling.stop_command:
            words = (*scaling.stop_command, decision.part, f"mqtt://{decision.who}")
            self._run(words, decision, self._tell)
        return carried_out(registry, decision, now_ms)

    def ran(self, outcome: Ran, registry: Registry, now_ms: int) -> Registry:
        """A command has ended; the registry with what it started or without.

        Raises:
            FieldError: It failed, or named no server.
        """
        decision = outcome.decision
        if decision.deed == "start":
            self._autoscaler.is_starting = False
        if outcome.failure is not None:
            rule = f"a command that succeeds ({outcome.failure})"
            raise FieldError(f"autoscale.{decision.deed}_command", rule, outcome.said)
        if decision.deed == "stop" and decision.who is not None:
            key = spare_key(decision.part, decision.who)
            return registry.said(key.kind, key.name, None, now_ms)
        endpoint = Endpoint.parse(outcome.said)
        who = BrokerInfo(endpoint.host, endpoint.port)
        log.warning("autoscale: %s %s was started", decision.part, who)
        key = spare_key(decision.part, who)
        return registry.said(key.kind, key.name, who, now_ms)

    def report(self, registry: Registry, now_s: float) -> bytes | None:
        """What administrators should see; None when it is too early for more."""
        if now_s - self._reported_s < REPORT_S:
            return None
        self._reported_s = now_s
        report = self._autoscaler.report(registry, self._rates.per_s(), now_s)
        return msgspec.json.encode(report)
