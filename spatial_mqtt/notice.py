"""Notices: the way back to the slope. What an analyst says of an area. No I/O.

Retained on ``/notice/<area>`` at the gateways' brokers; a node listens for its own
cell and every area around it. JSON, so that a person can publish one by hand.
"""

import math
from collections.abc import Callable

import msgspec

from spatial_mqtt.errors import NoticeError
from spatial_mqtt.priority import LADDER

MAX_NOTICE_BYTES = 4096
LOW_MM, HIGH_MM = 10.0, 2000.0
"""Criteria of all Japan lie well within; beyond is a slip of the pen."""

Opened = Callable[[str, bytes], bytes]
"""Gives the JSON of a signed notice by topic and payload, or raises `NoticeError`."""

LATEST_VERSION = 4_102_444_800.0  # the year 2100: milliseconds are refused


class CriteriaNotice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Criteria of an area, as soil water index.

    Attributes:
        advisory_mm: Of level 2.
        warning_mm: Of level 3.
        special_mm: Of level 5.
        version: Unix time of their making; the newer counts.
        line: Points (60-minute rain, soil water index) of the critical line, level
            4; empty uses the planning default.
    """

    advisory_mm: float
    warning_mm: float
    special_mm: float
    version: float
    line: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        """Refuse criteria that cannot be."""
        limits = (self.advisory_mm, self.warning_mm, self.special_mm)
        if not LOW_MM <= limits[0] <= limits[1] <= limits[2] <= HIGH_MM:
            rule = (
                f"{LOW_MM:g} <= advisory_mm <= warning_mm <= special_mm <= {HIGH_MM:g}"
            )
            raise ValueError(f"criteria must be {rule}, got {limits}")
        if not 0 <= self.version <= LATEST_VERSION:
            raise ValueError(f"version must be Unix seconds, got {self.version:g}")


class Notice(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is said of an area.

    Attributes:
        level: The level that an analyst sees there; 3 and more make nodes look
            more often.
        until_s: Unix time at which the level no longer holds.
        criteria: New criteria for the nodes in the area.
        at_s: Unix time of its making; of one area's notices the newest counts. 0 for
            one made by hand.
        withdrawn: Takes the earlier one back. Where notices must be signed nothing
            else does: an empty payload bears no signature.
    """

    level: int = 1
    until_s: float = 0.0
    criteria: CriteriaNotice | None = None
    at_s: float = 0.0
    withdrawn: bool = False

    def __post_init__(self) -> None:
        """Refuse levels that are none, and times that never come."""
        LADDER.check(self.level)
        if not math.isfinite(self.until_s):
            raise ValueError("until_s must be a finite time")
        if not 0 <= self.at_s <= LATEST_VERSION:
            raise ValueError(f"at_s must be Unix seconds, got {self.at_s:g}")
        if self.withdrawn and (self.level > 1 or self.criteria is not None):
            raise ValueError("withdrawn must come without level and criteria")

    def encode(self) -> bytes:
        """Encode as JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, payload: bytes) -> "Notice":
        """Decode a notice.

        Raises:
            NoticeError: It does not parse.
        """
        if len(payload) > MAX_NOTICE_BYTES:
            rule = f"at most {MAX_NOTICE_BYTES} bytes"
            raise NoticeError("notice", rule, f"{len(payload)} bytes")
        try:
            return msgspec.json.decode(payload, type=cls)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise NoticeError(
                "notice", f"JSON of its form ({error})", payload
            ) from error


class Signed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A notice with a signature; see `spatial_mqtt.signature`.

    Attributes:
        body: The notice's JSON.
        signature: In base64.
    """

    body: str
    signature: str


def made_at_s(payload: bytes) -> float:
    """When a notice was made, signed or not, for who only passes it on; else 0."""
    try:
        body = msgspec.json.decode(payload, type=Signed).body.encode()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        body = payload
    try:
        return Notice.decode(body).at_s
    except NoticeError:
        return 0.0
