"""Settings of an uplink, shared by nodes and gateways, and its status text."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol
from zoneinfo import ZoneInfo

from edge_agent.uplink.in_flight import CustodyMode, FlightLimits
from edge_agent.uplink.link_rate import RateLimiter, RatePeriod, parse_minute
from edge_agent.uplink.scheduler import SenderProfile
from service_runtime.errors import FieldError
from service_runtime.settings import KeyRule, key
from service_runtime.tls import Endpoint, list_shared_client_ids
from spatial_mqtt.priority import LADDER, Delivery, QosPolicy


def check_qos(qos: tuple[int, ...]) -> None:
    """Check for one valid QoS per priority.

    Raises:
        FieldError: The count is wrong, or a value is not 0, 1 or 2.
    """
    if len(qos) != LADDER.top or not set(qos) <= {0, 1, 2}:
        rule = f"{LADDER.top} numbers, each 0, 1 or 2, for priorities 1 to {LADDER.top}"
        raise FieldError("qos", rule, list(qos))


def check_time_zone(name: str | None) -> None:
    """Check the name of a time zone; None is that of the machine.

    Raises:
        FieldError: This machine does not know it.
    """
    if name is None:
        return
    try:
        ZoneInfo(name)
    except (ValueError, LookupError, OSError) as error:  # a path, unknown, a folder
        rule = "a name of `timedatectl list-timezones`, such as Asia/Tokyo"
        raise FieldError("time zone", rule, name, "apt install tzdata") from error


@dataclass(frozen=True)
class PeriodSection:
    """``[[uplink.period]]``: a part of each day with its own rate."""

    start: str = key(KeyRule("Local time it begins, HH:MM.", check=parse_minute))
    end: str = key(
        KeyRule(
            "Local time it ends, HH:MM; not after start is tomorrow.",
            check=parse_minute,
        )
    )
    rate_bytes_per_s: float = key(
        KeyRule("Most wire bytes in a second; 0 closes the link.", "bytes/s", low=0)
    )


@dataclass(frozen=True)
class LinkSection:
    """Settings in ``[uplink]`` that every uplink has."""

    rate_bytes_per_s: float | None = key(
        KeyRule(
            "Most wire bytes to send in a second; absent is no limit.",
            "bytes/s",
            low=100,
        ),
        None,
    )
    period: tuple[PeriodSection, ...] = key(
        KeyRule("Times of day with a rate of their own; the first that holds counts."),
        (),
    )
    time_zone: str | None = key(
        KeyRule(
            "Time zone of the periods, such as Asia/Tokyo; absent is the machine's.",
            check=check_time_zone,
        ),
        None,
    )
    override_from: int = key(
        KeyRule(
            "Messages from this priority up pass a closed or a spent link.",
            low=1,
            high=LADDER.top + 1,
        ),
        LADDER.urgent_from,
    )
    window_bytes: int = key(
        KeyRule(
            "Most bytes in flight; a slow link is given less, as measured: "
            "what is in flight cannot be overtaken.",
            "bytes",
            low=200,
            high=16e6,
        ),
        FlightLimits.window_bytes,
    )
    keepalive_s: int = key(
        KeyRule(
            "Silence after which the link is tried; each trial costs about 300 bytes.",
            "s",
            low=5,
            high=3600,
        ),
        60,
    )
    qos: tuple[int, ...] = key(
        KeyRule(
            "QoS of priorities 1 to 5. With 0, what a broker drops is found out by "
            "silence, and only where receipts are given.",
            check=check_qos,
        ),
        (1,) * LADDER.top,
    )
    custody: str = key(
        KeyRule(
            "When a message leaves the queue: on a receipt, on PUBACK, "
            "or as the other side offers.",
            choices=tuple(mode.value for mode in CustodyMode),
        ),
        CustodyMode.AUTO.value,
    )

    def sender_profile(
        self,
        id_: str,
        *,
        is_relay: bool,
        gather_s: float = 0.0,
        publisher_id: str | None = None,
    ) -> SenderProfile:
        """Identity and settings of the sender."""
        deliveries = {p: Delivery(qos) for p, qos in enumerate(self.qos, start=1)}
        return SenderProfile(
            id_,
            is_relay,
            QosPolicy(deliveries),
            FlightLimits(window_bytes=self.window_bytes),
            CustodyMode(self.custody),
            gather_s,
            self.keepalive_s,
            publisher_id=publisher_id,
        )

    def local_time(self, wall_s: float) -> datetime:
        """A Unix time in the zone of the periods."""
        zone = None if self.time_zone is None else ZoneInfo(self.time_zone)
        return datetime.fromtimestamp(wall_s, UTC).astimezone(zone)

    def describe_zone(self, wall_s: float) -> str:
        """In which zone the times of the periods are."""
        return (
            f"periods are in local time, now {self.local_time(wall_s):%H:%M %Z (UTC%z)}"
        )

    def local_minute(self, wall_s: float) -> int:
        """Minute of the day of a Unix time, in the zone of the periods."""
        at = self.local_time(wall_s)
        return at.hour * 60 + at.minute

    def rate_limiter(self, local_minute: Callable[[], int | None]) -> RateLimiter:
        """Rate limiter of the link."""
        periods = [
            RatePeriod(parse_minute(p.start), parse_minute(p.end), p.rate_bytes_per_s)
            for p in self.period
        ]
        return RateLimiter(
            self.rate_bytes_per_s, periods, self.override_from, local_minute
        )


class UplinkState(Protocol):
    """State of an uplink, for its status text."""

    @property
    def endpoint(self) -> Endpoint | None:
        """The broker in use."""

    @property
    def down_since_s(self) -> float | None:
        """Monotonic time since when the link is down; None while it is up."""

    @property
    def unserved_since_s(self) -> float | None:
        """Monotonic time since when messages are not accepted; None if they are."""

    @property
    def gives_receipts(self) -> bool:
        """Whether the broker in use gives receipts, or may still offer them."""

    @property
    def held_count(self) -> int:
        """Number of messages that are held until a store gives a receipt."""

    @property
    def withheld_count(self) -> int:
        """Number of messages of another node that are not sent."""


def format_link(
    uplink: UplinkState, now_s: float, held: str = "urgent held until a gateway does"
) -> str:
    """Status text such as ``gw:1884 is up`` or ``gw:1884 is down for 12 s``.

    Args:
        uplink: The uplink.
        now_s: Monotonic time, on the uplink's clock.
        held: What follows the number of held messages.
    """
    down_s, unserved_s = uplink.down_since_s, uplink.unserved_since_s
    if uplink.endpoint is None:
        return "no gateway is known"
    is_shared = list_shared_client_ids().get(uplink.endpoint, False)
    shared = ", another program may use our client id" if is_shared else ""
    if down_s is not None:
        return f"{uplink.endpoint} is down for {now_s - down_s:.0f} s{shared}"
    if unserved_s is not None:
        return f"{uplink.endpoint} takes nothing for {now_s - unserved_s:.0f} s{shared}"
    text = f"{uplink.endpoint} is up{shared}"
    if not uplink.gives_receipts:
        text += ", gives no receipts"
    if uplink.held_count:
        text += f", {uplink.held_count} {held}"
    if uplink.withheld_count:
        text += f", {uplink.withheld_count} of another node not sent (queue export)"
    return text
