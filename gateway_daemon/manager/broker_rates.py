"""Message rates of distributed brokers, and the command that starts or stops a server.

It also gives the brokers without a connection.

Source: mosquitto(8), ``$SYS/broker/publish/messages/received``: PUBLISH packets since
the broker's start, published every ``sys_interval`` (10 s) when the count has changed.
Other brokers may not publish it.
"""

import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gateway_daemon.manager.scaling_policy import ScalingDecision
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import BrokerInfo
from spatial_mqtt.topics import RECEIVED_COUNT
from spatial_mqtt.transport import (
    BaseConnectionHandler,
    ConnectionHandler,
    IncomingMessage,
    Session,
)

COUNT_STALE_S = 30.0
"""A count that has not changed for this long means a rate of zero."""

Connect = Callable[[BrokerInfo, Session, ConnectionHandler], Connection]


class BrokerRateMonitor:
    """Monitors the message counters of a set of brokers.

    Args:
        manager_id: Id of the Manager, for the names of the sessions.
        connect: Makes connections.
        clock: Monotonic seconds.
    """

    def __init__(
        self, manager_id: str, connect: Connect, clock: Callable[[], float]
    ) -> None:
        self._session = Session(f"yamamori-rates-{manager_id}", ((RECEIVED_COUNT, 0),))
        self._connect = connect
        self._clock = clock
        self._counters: dict[BrokerInfo, tuple[ReceivedCounter, Connection]] = {}

    def rates_per_s(self) -> dict[BrokerInfo, float]:
        """Messages per second by broker; absent while unknown."""
        now_s = self._clock()
        rates = {
            b: counter.rate_per_s(now_s) for b, (counter, _) in self._counters.items()
        }
        return {broker: rate for broker, rate in rates.items() if rate is not None}

    def unreachable(self) -> frozenset[BrokerInfo]:
        """Brokers without a connection."""
        return frozenset(b for b, (each, _) in self._counters.items() if not each.is_up)

    def set_brokers(self, brokers: Iterable[BrokerInfo]) -> None:
        """Connect to these brokers and to no others."""
        wanted = set(brokers)
        for broker in wanted - self._counters.keys():
            counter = ReceivedCounter(self._clock)
            connection = self._connect(broker, self._session, counter)
            self._counters[broker] = counter, connection
            connection.start()
        for broker in self._counters.keys() - wanted:
            # `stop` may block in an attempt to connect; the Manager must not wait.
            _, gone = self._counters.pop(broker)
            threading.Thread(target=gone.stop, daemon=True).start()

    def stop(self) -> None:
        """Disconnect from all brokers."""
        self.set_brokers(())


class ReceivedCounter(BaseConnectionHandler):
    """Connection handler for the counter of one broker.

    Args:
        clock: Monotonic seconds.

    Attributes:
        is_up: Whether the broker is connected.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.is_up = False
        self._clock = clock
        self._last: tuple[float, int] | None = None
        self._per_s: float | None = None
        self._is_retained = True

    def rate_per_s(self, now_s: float) -> float | None:
        """Messages per second between its last two counts; None while unknown."""
        last = self._last
        if last is not None and now_s - last[0] >= COUNT_STALE_S:
            return 0.0
        return self._per_s

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        self._is_retained = True
        self.is_up = True

    def on_down(self, reason: str) -> None:
        self.is_up = False
        # A restarted broker counts from zero.
        self._last, self._per_s = None, None

    def on_message(self, message: IncomingMessage) -> None:
        if not message.payload.isdigit():
            return
        if self._is_retained:  # of unknown age
            self._is_retained = False
            return
        now_s, count = self._clock(), int(message.payload)
        if self._last is not None and count >= self._last[1]:
            over_s = max(now_s - self._last[0], 1e-3)
            self._per_s = (count - self._last[1]) / over_s
        self._last = now_s, count


COMMAND_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class CommandResult:
    """Result of a command.

    Attributes:
        decision: What it was run for.
        output: The last line of its output.
        failure: Why it failed; None if it succeeded.
    """

    decision: ScalingDecision
    output: str
    failure: str | None = None


def run_command_in_thread(
    command: Sequence[str],
    decision: ScalingDecision,
    on_result: Callable[[CommandResult], object],
) -> None:
    """Run a command in a thread of its own.

    Args:
        command: Program and arguments; no shell is involved.
        decision: What it is run for.
        on_result: Called with the result, in that thread.
    """
    threading.Thread(
        target=lambda: on_result(_run(command, decision)), name="command", daemon=True
    ).start()


def _run(command: Sequence[str], decision: ScalingDecision) -> CommandResult:
    try:
        done = subprocess.run(  # noqa: S603 - the operator's own, from the settings
            command,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return CommandResult(decision, "", str(error))
    output = (done.stdout.splitlines() or [""])[-1].strip()
    if done.returncode != 0:
        last = (done.stderr.splitlines() or [""])[-1]
        return CommandResult(decision, output, f"status {done.returncode}: {last}")
    return CommandResult(decision, output)
