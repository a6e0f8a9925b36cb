"""How an uplink does, in words for a status line."""

from typing import Protocol

from spatial_mqtt.endpoint import Endpoint


class Served(Protocol):
    """What is asked of an uplink."""

    @property
    def endpoint(self) -> Endpoint | None:
        """The broker in use."""

    @property
    def down_since_s(self) -> float | None:
        """Since when the link is down; None while it is up."""

    @property
    def unserved_since_s(self) -> float | None:
        """Since when nobody takes our messages; None while somebody does."""


def link_words(uplink: Served, now_s: float) -> str:
    """Such as ``gw:1884 is up`` or ``gw:1884 is down for 12 s``.

    Args:
        uplink: The uplink.
        now_s: Monotonic time, on the uplink's clock.
    """
    down_s, unserved_s = uplink.down_since_s, uplink.unserved_since_s
    if uplink.endpoint is None:
        return "no gateway is known"
    if down_s is not None:
        return f"{uplink.endpoint} is down for {now_s - down_s:.0f} s"
    if unserved_s is not None:
        return f"{uplink.endpoint} takes nothing for {now_s - unserved_s:.0f} s"
    return f"{uplink.endpoint} is up"
