"""How much each place may send: who floods is put aside before it costs a disk write.

The account is the publisher's where the broker knows it by its certificate, and the
topic's where it does not; the id in an envelope could be anybody's. What is urgent has
an account of its own, so that a node's flood of readings does not silence its own
alarm. What is put aside gets no receipt: a sender of ours keeps it and sends it again.
"""

import logging
from collections import OrderedDict
from dataclasses import dataclass

from edge_agent.uplink.bucket import TokenBucket
from gateway_daemon.gateway.inbox import URGENT_FROM
from gateway_daemon.gateway.intake import told_priority
from spatial_mqtt.errors import TopicError
from spatial_mqtt.link import Incoming
from spatial_mqtt.topics import Forward

log = logging.getLogger(__name__)

BURST_S = 10.0
"""A node that was cut off comes with a backlog: so much is let in at once."""

MOST_ACCOUNTS = 50_000
TELL_EVERY_S = 60.0


@dataclass
class _Account:
    bucket: TokenBucket
    told_s: float | None = None


class Allowance:
    """Accounts of all places, the least recently used forgotten first.

    Args:
        per_s: Messages in a second for each; None is no limit.

    Attributes:
        put_aside: Publications that were not let in.
    """

    def __init__(self, per_s: float | None) -> None:
        self._per_s = per_s
        self._accounts: OrderedDict[tuple[str, bool], _Account] = OrderedDict()
        self.put_aside = 0

    def lets_in(self, message: Incoming, now_s: float) -> bool:
        """Whether a publication may be looked at."""
        if self._per_s is None:
            return True
        key = _key(message)
        account = self._account(key, self._per_s)
        if account.bucket.wait_s(now_s) <= 0:
            return True
        self.put_aside += 1
        if account.told_s is None or now_s - account.told_s >= TELL_EVERY_S:
            account.told_s = now_s
            log.warning(
                "%s sends more than %g messages/s; what is above is put aside "
                "without a receipt",
                key[0],
                self._per_s,
            )
        return False

    def charge(self, message: Incoming, count: int, now_s: float) -> None:
        """A publication held so many messages; none is a piece of one."""
        if self._per_s is not None:
            account = self._account(_key(message), self._per_s)
            account.bucket.spend(max(1, count), now_s)

    def _account(self, key: tuple[str, bool], per_s: float) -> _Account:
        account = self._accounts.get(key)
        if account is None:
            account = _Account(TokenBucket(per_s, per_s * BURST_S))
            self._accounts[key] = account
            if len(self._accounts) > MOST_ACCOUNTS:
                self._accounts.popitem(last=False)
        self._accounts.move_to_end(key)
        return account


def _key(message: Incoming) -> tuple[str, bool]:
    is_urgent = told_priority(message) >= URGENT_FROM
    try:
        forward = Forward.parse(message.topic)
    except TopicError:
        return message.topic, is_urgent
    return forward.by or forward.topic, is_urgent
