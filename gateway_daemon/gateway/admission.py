"""Admission of incoming messages: rate limit per sender and check of the node id.

A message that is not admitted gets no receipt, so its sender keeps it.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from edge_agent.uplink.rate_limit import TokenBucket
from gateway_daemon.gateway.incoming import ParsedMessage
from spatial_mqtt.topics import ForwardTopic
from spatial_mqtt.transport import IncomingMessage

log = logging.getLogger(__name__)

BURST_S = 10.0
"""Size of a bucket in seconds of its rate: a node that was cut off has a backlog."""

BYTES_PER_MESSAGE = 1024
"""A message above this size counts as several."""

MAX_ACCOUNTS = 50_000
MAX_FILE_BYTES = 16 * 2**20
"""Size at which the quarantine file is rotated; one older file is kept."""

LOG_EVERY_S = 60.0


@dataclass
class _Account:
    bucket: TokenBucket
    logged_s: float | None = None


class Sender(NamedTuple):
    """What a rate limit applies to.

    Urgent messages count by themselves, so that a flood of readings does not block the
    node's own alarm.

    Attributes:
        name: The publisher's certificate name where the topic has one, otherwise the
            topic; the id in an envelope could be forged.
        is_urgent: Whether its messages are urgent.
    """

    name: str
    is_urgent: bool

    @classmethod
    def of(cls, topic: ForwardTopic, *, is_urgent: bool) -> "Sender":
        """The sender of a publication on a topic."""
        return cls(topic.publisher or topic.topic, is_urgent)


class SenderRateLimit:
    """Token buckets per sender, with the least recently used discarded first.

    Args:
        max_per_s: Messages of up to `BYTES_PER_MESSAGE` per second for each bucket;
            None is no limit.

    Attributes:
        rejected: Publications that were rejected.
    """

    def __init__(self, max_per_s: float | None) -> None:
        self._per_s = max_per_s
        self._accounts: OrderedDict[Sender, _Account] = OrderedDict()
        self.rejected = 0

    def allows(self, sender: Sender, now_s: float) -> bool:
        """Whether a sender is within its limit."""
        if self._per_s is None:
            return True
        account = self._account(sender, self._per_s)
        if account.bucket.wait_s(now_s) <= 0:
            return True
        self.rejected += 1
        if account.logged_s is None or now_s - account.logged_s >= LOG_EVERY_S:
            account.logged_s = now_s
            log.warning(
                "%s sends more than %g messages/s; the excess is rejected without a "
                "receipt",
                sender.name,
                self._per_s,
            )
        return False

    def charge(
        self,
        sender: Sender,
        publication: IncomingMessage,
        messages: Sequence[IncomingMessage],
        now_s: float,
    ) -> None:
        """Charge a sender for the messages in a publication, and for at least one."""
        if self._per_s is not None:
            account = self._account(sender, self._per_s)
            # A message takes space for its topic, too.
            size_bytes = sum(len(each.payload) + len(each.topic) for each in messages)
            size_bytes = max(len(publication.payload), size_bytes)
            tokens = max(1, len(messages), size_bytes // BYTES_PER_MESSAGE)
            account.bucket.spend(tokens, now_s)

    def _account(self, sender: Sender, per_s: float) -> _Account:
        account = self._accounts.get(sender)
        if account is None:
            account = _Account(TokenBucket(per_s, per_s * BURST_S))
            self._accounts[sender] = account
            if len(self._accounts) > MAX_ACCOUNTS:
                self._accounts.popitem(last=False)
        self._accounts.move_to_end(sender)
        return account


class IdentityCheck:
    """Quarantines messages whose node id differs from the publisher's certificate.

    The broker lets a certificate publish under ``/from/<its own name>/`` only, so the
    topic names the true publisher. A different node id in the message is forged, or the
    node's settings do not match its certificate. A message without an id gets the
    gateway's and is always accepted.

    Args:
        path: Quarantine file with one JSON object per line: Unix time, topic, id, and
            the payload in base64.
        wall_s: Unix time.
        has_certificates: Whether clients of the own broker have certificates. Without
            them no publisher is known, and every id is accepted.

    Attributes:
        quarantined: Messages quarantined since the start.
    """

    def __init__(
        self, path: Path, wall_s: Callable[[], float], *, has_certificates: bool
    ) -> None:
        self._path = path
        self._wall_s = wall_s
        self._has_names = has_certificates
        self._logged_s: float | None = None
        self.quarantined = 0

    def filter_genuine(self, messages: Iterable[ParsedMessage]) -> list[ParsedMessage]:
        """Quarantine forged messages and return the others."""
        genuine: list[ParsedMessage] = []
        forged: list[ParsedMessage] = []
        for message in messages:
            (genuine if self._is_genuine(message) else forged).append(message)
        if forged:
            self._quarantine(forged)
        return genuine

    def _is_genuine(self, message: ParsedMessage) -> bool:
        claimed = message.draft.id
        if claimed is None:
            return True
        if message.publisher_id is None:
            return not self._has_names
        return claimed.node == message.publisher_id

    def _quarantine(self, forged: list[ParsedMessage]) -> None:
        self.quarantined += len(forged)
        now_s = self._wall_s()
        if self._logged_s is None or abs(now_s - self._logged_s) >= LOG_EVERY_S:
            self._logged_s = now_s
            log.warning(
                "%s publishes under the id %s; put aside without a receipt in %s "
                "(%d so far)",
                forged[0].publisher_id or "a client without a certificate name",
                forged[0].draft.id,
                self._path,
                self.quarantined,
            )
        try:
            self._append(b"".join(_line(message, now_s) for message in forged))
        except OSError as error:  # only evidence is lost: go on with the others
            log.warning("cannot write %s: %s", self._path, error)

    def _append(self, lines: bytes) -> None:
        if self._path.exists() and self._path.stat().st_size > MAX_FILE_BYTES:
            self._path.replace(self._path.with_suffix(".old.jsonl"))
        with self._path.open("ab") as file:
            file.write(lines)


def _line(message: ParsedMessage, now_s: float) -> bytes:
    record = {
        "at": now_s,
        "topic": message.incoming.topic,
        "id": str(message.draft.id),
        "payload": message.incoming.payload,
    }
    return msgspec.json.encode(record) + b"\n"
