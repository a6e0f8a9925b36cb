"""How much each place may send: who floods is put aside before it costs a disk write.

The account is the publisher's where the broker knows it by its certificate, and the
topic's where it does not; the id in an envelope could be anybody's. What is urgent has
an account of its own, so that a node's flood of readings does not silence its own
alarm. What is put aside gets no receipt: a sender of ours keeps it and sends it again.

Who says another's name: put aside, counted, and never given a receipt.

The broker lets a certificate publish under ``/from/<its own name>/`` only, so what
comes there is from whom it says. A message's id names a node, too; when the two differ
somebody speaks for another, or a node's settings and its certificate do not belong
together. Its sender, if it is one of ours, keeps the message. What has no id of its
own gets the gateway's, and may come from anybody who may publish there.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edge_agent.uplink.rate_limit import TokenBucket
from gateway_daemon.gateway.ingress_buffers import URGENT_FROM
from gateway_daemon.gateway.ingress_messages import Taken, told_priority
from spatial_mqtt.errors import TopicError
from spatial_mqtt.topics import Forward
from spatial_mqtt.transport import Incoming

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


MOST_BYTES = 16 * 2**20
"""Of one file; the one before it is kept, too."""


class Impostors:
    """Keeps what came under a false name, for whoever looks into it.

    Args:
        path: File of one JSON object a line: when, on which topic, under which id,
            and the payload in base64.
        wall_s: Unix time.
        has_names: Whether our broker's clients have certificates. Without, nobody's
            name is known and every id is believed.

    Attributes:
        count: Messages that were turned away, since our start.
    """

    def __init__(
        self, path: Path, wall_s: Callable[[], float], *, has_names: bool
    ) -> None:
        self._path = path
        self._wall_s = wall_s
        self._has_names = has_names
        self._told_s: float | None = None
        self.count = 0

    def turn_away(self, arrived: Iterable[Taken]) -> list[Taken]:
        """What may be stored; the rest is kept aside."""
        genuine: list[Taken] = []
        false: list[Taken] = []
        for taken in arrived:
            (genuine if self._is_genuine(taken) else false).append(taken)
        if false:
            self._keep(false)
        return genuine

    def _is_genuine(self, taken: Taken) -> bool:
        claimed = taken.draft.id
        if claimed is None:
            return True
        if taken.by is None:
            return not self._has_names
        return claimed.node == taken.by

    def _keep(self, false: list[Taken]) -> None:
        self.count += len(false)
        now_s = self._wall_s()
        if self._told_s is None or abs(now_s - self._told_s) >= TELL_EVERY_S:
            self._told_s = now_s
            log.warning(
                "%s says it is %s; put aside without a receipt in %s (%d so far)",
                false[0].by or "somebody without a name in the topic",
                false[0].draft.id,
                self._path,
                self.count,
            )
        lines = b"".join(_line(taken, now_s) for taken in false)
        try:
            self._append(lines)
        except OSError as error:  # evidence; no reason to hold up the others
            log.warning("%s is not written: %s", self._path, error)

    def _append(self, lines: bytes) -> None:
        if self._path.exists() and self._path.stat().st_size > MOST_BYTES:
            self._path.replace(self._path.with_suffix(".old.jsonl"))
        with self._path.open("ab") as file:
            file.write(lines)


def _line(taken: Taken, now_s: float) -> bytes:
    told = {
        "at": now_s,
        "topic": taken.incoming.topic,
        "id": str(taken.draft.id),
        "payload": taken.incoming.payload,
    }
    return msgspec.json.encode(told) + b"\n"
