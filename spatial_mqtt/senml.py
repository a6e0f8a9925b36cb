"""SenML packs: the readings of one node at one instant.

CBOR on the wire, JSON accepted. Beside the base fields, the first record has labels
of this system: ``boot`` and ``seq`` (with the node, the message id), ``pri``, ``tq``
(1 synchronised, 0 not), ``mono`` (seconds since the boot of the machine), ``why`` (the
rule that set the priority) and ``rs`` (the same as codes). Unknown labels are
preserved.

CBOR from other programs is decoded with bounds on what it becomes in memory. Semantic
tags are refused before they are resolved: a payload of 400 bytes that nests shared
references (tags 28 and 29) becomes 10^9 items, and other tags compile regular
expressions or build large integers. The formats of this system need none; the tag that
marks a payload as CBOR (55799) is skipped. Without tags the memory grows with the
payload, most by empty and small containers, so their number is bounded, too.

Source: RFC 8428 (SenML), RFC 8798 (units mm, hPa, ...); RFC 8949 section 3.4 (tags) and
section 10 (security considerations).
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Final, NoReturn

import cbor2

from service_runtime.errors import MAX_SHOWN_CHARS
from spatial_mqtt.errors import EnvelopeError, PriorityError, TopicError
from spatial_mqtt.priority import LADDER
from spatial_mqtt.topics import check_node_id

SELF_DESCRIBED: Final = b"\xd9\xd9\xf7"
MAX_DEPTH: Final = 32
MAX_MAPS: Final = 10_000
MAX_LISTS: Final = 40_000
"""An empty list takes one byte, and 64 in memory; one with a number two, and 96. Many
lists make the garbage collector run, too. Counted are all bytes that may begin a list:
256 KiB of random bytes, as of a picture, have 33,000."""

_LIST_HEADS: Final = bytes(range(0x80, 0xA0))
_MAX_TEXT_CHARS: Final = 120

MAX_PAYLOAD_BYTES = 256 * 1024
MAX_RECORDS = 4096
MAX_SEQ = 2**63 - 1
ABSOLUTE_TIME_S = 2**28
"""Smaller times are relative to now. Source: RFC 8428, section 4.5.3."""


Value = float | str | bool | bytes | None
Labels = Mapping[str | int, Any]

_CBOR_LABELS: dict[str, int] = {
    "bver": -1, "bn": -2, "bt": -3, "bu": -4, "bv": -5, "bs": -6,
    "n": 0, "u": 1, "v": 2, "vs": 3, "vb": 4, "s": 5, "t": 6, "ut": 7, "vd": 8,
}  # fmt: skip
_LABEL_NAMES: dict[Any, str] = {number: name for name, number in _CBOR_LABELS.items()}
_BASE = frozenset({"bver", "bn", "bt", "bu", "bv", "bs"})
_FIRST_ONLY = frozenset({"bn", "bt"})
"""Only in the first record, because a pack is of one node at one instant."""

_OWN_LABELS = frozenset({"boot", "seq", "pri", "tq", "mono", "why", "rs"})
_FIELDS = frozenset({"n", "u", "v", "vs", "vb", "vd", "s", "t"})
_VALUES = ("v", "vs", "vb", "vd")
_PLAIN = ["v"]
_LATER = _BASE | _FIELDS
_FIRST = _LATER | _OWN_LABELS
_BOOT = re.compile(r"[A-Za-z0-9._-]{1,32}")
_SEQ = re.compile(r"[0-9]{1,19}")
_BASE_NAME: Final = _CBOR_LABELS["bn"]


class CborError(ValueError):
    """A payload is no CBOR, or exceeds a bound."""


class _NoTags(Mapping[int, Callable[[Any, bool], Any]]):
    """Decoders of semantic tags: a tag is refused when its decoder is looked up."""

    def __getitem__(self, tag: int) -> NoReturn:
        raise CborError(f"semantic tag {tag}")

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def __len__(self) -> int:
        return 0


_NO_TAGS: Final = _NoTags()


class _MapCounter:
    """Counts the maps of a payload as they are decoded."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(
        self, decoded: Mapping[Any, Any], _is_immutable: bool
    ) -> Mapping[Any, Any]:
        self._count += 1
        if self._count > MAX_MAPS:
            raise CborError(f"more than {MAX_MAPS} maps")
        return decoded


def decode_cbor(payload: bytes) -> Any:  # noqa: ANN401 - checked by the caller
    """Decode one value.

    Args:
        payload: The whole payload; its size is bounded by the caller.

    Raises:
        CborError: It is no CBOR, has a semantic tag, is nested deeper than `MAX_DEPTH`,
            has too many containers, or bytes follow the value.
    """
    if len(payload) > MAX_LISTS:
        heads = len(payload) - len(payload.translate(None, _LIST_HEADS))
        if heads > MAX_LISTS:
            raise CborError(f"more than {MAX_LISTS} lists")
    stream = BytesIO(payload.removeprefix(SELF_DESCRIBED))
    may_exceed = len(payload) > MAX_MAPS  # a map takes a byte at least
    try:
        decoded = cbor2.load(
            stream,
            object_hook=_MapCounter() if may_exceed else None,
            semantic_decoders=_NO_TAGS,
            max_depth=MAX_DEPTH,
        )
    except (cbor2.CBORDecodeError, ValueError, TypeError, RecursionError) as error:
        raise CborError(_cause(error)[:_MAX_TEXT_CHARS]) from error
    if rest := stream.read():
        raise CborError(f"{len(rest)} bytes after the value")
    return decoded


def _cause(error: BaseException) -> str:
    """The text of the first error: cbor2 wraps those of its hooks."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error)


@dataclass(frozen=True, order=True)
class MessageId:
    """Unique id of a message.

    Attributes:
        node: Id of the node.
        boot: Random id of the node's boot.
        seq: Sequence number, which grows over the life of the node's queue.
    """

    node: str
    boot: str
    seq: int

    def __str__(self) -> str:
        """``node:boot:seq``."""
        return f"{self.node}:{self.boot}:{self.seq}"

    @classmethod
    def parse(cls, text: str) -> "MessageId":
        """Parse ``node:boot:seq``.

        Raises:
            EnvelopeError: The text does not have this form.
        """
        node, _, rest = text.partition(":")
        boot, _, seq = rest.partition(":")
        if not _SEQ.fullmatch(seq):
            raise EnvelopeError("id", "node:boot:seq", text)
        return cls(_node_id(node, text), _boot(boot), _seq(int(seq)))


@dataclass(frozen=True)
class Reading:
    """A SenML record with its base values applied.

    Attributes:
        name: Sensor and quantity, such as ``rain`` or ``tilt/x``.
        unit: SenML unit.
        value: Number, text, boolean or bytes; None when only a sum is given.
        sum: Integrated sum since the start of the counter, in the unit.
        time_s: Offset from the pack's time, in seconds.
        extra: Labels unknown to this version.
    """

    name: str
    unit: str | None = None
    value: Value = None
    sum: float | None = None
    time_s: float = 0.0
    extra: Labels = field(default_factory=dict)


@dataclass(frozen=True)
class Pack:
    """The readings of one node at one sampling instant.

    Attributes:
        id: The message id.
        priority: Priority on the ladder.
        time_s: Unix time of the sampling, in seconds.
        readings: At least one.
        synchronised: Whether the node's clock was synchronised at that time.
        mono_s: Seconds since the boot of the node; None when unknown.
        why: The rule that set the priority.
        reasons: The same as `slope_science.reasons` encodes them, not checked here.
    """

    id: MessageId
    priority: int
    time_s: float
    readings: tuple[Reading, ...]
    synchronised: bool = True
    mono_s: float | None = None
    why: str | None = None
    reasons: Sequence[Any] = ()


def encode_cbor(pack: Pack) -> bytes:
    """Encode a pack for the wire (``application/senml+cbor``)."""
    records = [
        {_CBOR_LABELS.get(name, name): value for name, value in record.items()}
        for record in _records(pack)
    ]
    return cbor2.dumps(records)


def encode_json(pack: Pack) -> bytes:
    """Encode a pack for other programs (``application/senml+json``).

    Raises:
        EnvelopeError: A value is bytes, which JSON cannot represent.
    """
    try:
        text = json.dumps(_records(pack), ensure_ascii=False, separators=(",", ":"))
    except TypeError as error:
        raise EnvelopeError(
            "value", "a number, text or truth in JSON", str(error)
        ) from error
    return text.encode()


def decode_pack(payload: bytes) -> Pack:
    """Decode a pack from CBOR or JSON, distinguished by the first byte.

    Raises:
        EnvelopeError: The payload is not a valid pack; names field and rule.
    """
    records = [_labelled(record) for record in _load(payload)]
    first = records[0]
    base: dict[str, Any] = {}
    readings = []
    for number, record in enumerate(records):
        if not _BASE.isdisjoint(record):
            for label in _FIRST_ONLY.intersection(record) if number else ():
                raise EnvelopeError(label, "in the first record only", record[label])
            base.update((k, v) for k, v in record.items() if k in _BASE)
        if not _FIELDS.isdisjoint(record):
            readings.append(_reading(record, base, number))
    if not readings:
        raise EnvelopeError("records", "at least one reading", len(records))
    node = _node(first.get("bn"))
    time_s = _number(first.get("bt", 0.0), "bt")
    return Pack(
        id=MessageId(node, _boot(first.get("boot")), _seq(first.get("seq"))),
        priority=_priority(first.get("pri", LADDER.default)),
        time_s=time_s,
        readings=tuple(readings),
        synchronised=_clock(first.get("tq", 1)),
        mono_s=None if "mono" not in first else _number(first["mono"], "mono"),
        why=_text(first.get("why"), "why"),
        reasons=_list(first.get("rs")),
    )


def decode_message_id(payload: bytes) -> tuple[MessageId, int]:
    """Decode only what custody needs: the message id and the priority.

    Raises:
        EnvelopeError: The payload has no message id.
    """
    if not may_be_pack(payload):
        raise EnvelopeError(
            "payload", "SenML in CBOR or JSON", payload[:MAX_SHOWN_CHARS]
        )
    first = _load(payload)[0]
    # Only `bn` of these has a number. With both labels the later one is valid.
    if _BASE_NAME not in first or "bn" in first:
        first = _labelled(first)
        base_name = first.get("bn")
    else:
        base_name = first[_BASE_NAME]
    node = _node(base_name)
    message_id = MessageId(node, _boot(first.get("boot")), _seq(first.get("seq")))
    return message_id, _priority(first.get("pri", LADDER.default))


def decode_time(payload: bytes) -> float | None:
    """Decode only the Unix time of a pack; None if its clock was not set.

    Raises:
        EnvelopeError: The payload is not a pack.
    """
    first = _labelled(_load(payload)[0])
    time_s = _number(first.get("bt", 0.0), "bt")
    return time_s if time_s and _clock(first.get("tq", 1)) else None


def _records(pack: Pack) -> list[dict[Any, Any]]:
    head: dict[str, Any] = {
        "bn": pack.id.node + "/",
        "bt": pack.time_s,
        "boot": pack.id.boot,
        "seq": pack.id.seq,
        "pri": pack.priority,
    }
    if not pack.synchronised:
        head["tq"] = 0
    if pack.mono_s is not None:
        head["mono"] = pack.mono_s
    if pack.why is not None:
        head["why"] = pack.why
    if pack.reasons:
        head["rs"] = list(pack.reasons)
    return [head | _body(pack.readings[0])] + [
        _body(reading) for reading in pack.readings[1:]
    ]


def _body(reading: Reading) -> dict[Any, Any]:
    body: dict[Any, Any] = {"n": reading.name}
    if reading.unit is not None:
        body["u"] = reading.unit
    if reading.value is not None:
        body[_value_label(reading.value)] = reading.value
    if reading.sum is not None:
        body["s"] = reading.sum
    if reading.time_s:
        body["t"] = reading.time_s
    return body | dict(reading.extra)


def _value_label(value: Value) -> str:
    if isinstance(value, bool):
        return "vb"
    if isinstance(value, str):
        return "vs"
    return "vd" if isinstance(value, bytes) else "v"


def _load(payload: bytes) -> list[dict[Any, Any]]:
    if not 1 <= len(payload) <= MAX_PAYLOAD_BYTES:
        rule = f"1 to {MAX_PAYLOAD_BYTES} bytes"
        raise EnvelopeError("payload", rule, f"{len(payload)} bytes")
    try:
        records = _parse(payload)
    except (ValueError, RecursionError) as error:
        raise EnvelopeError("payload", "SenML in CBOR or JSON", str(error)) from error
    if not isinstance(records, list) or not 1 <= len(records) <= MAX_RECORDS:
        raise EnvelopeError("payload", f"a list of 1 to {MAX_RECORDS} records", records)
    for record in records:
        if not isinstance(record, dict):
            raise EnvelopeError("payload", "a list of maps", records)
    return records


def _labelled(record: dict[Any, Any]) -> dict[str, Any]:
    return {_LABEL_NAMES.get(label, label): value for label, value in record.items()}


def may_be_pack(payload: bytes) -> bool:
    """Whether a payload starts like a CBOR list, possibly tagged, or a JSON list.

    A cheap test: most payloads of plain clients do not.
    """
    kind = payload[0] >> 5 if payload else 0
    return kind in {4, 6} or payload.lstrip()[:1] == b"["


def _parse(payload: bytes) -> object:
    if payload.lstrip()[:1] == b"[":
        if payload.count(b"[") + payload.count(b"{") > MAX_LISTS:
            raise ValueError(f"more than {MAX_LISTS} lists and maps")
        return json.loads(payload, parse_constant=_reject_constant)
    return decode_cbor(payload)


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _reading(
    record: Mapping[str, Any], base: Mapping[str, Any], number: int
) -> Reading:
    name = _text(base.get("bn", ""), "bn") or ""
    name += _text(record.get("n", ""), f"record {number} n") or ""
    _, _, local = name.partition("/")
    offset_s = _number(record.get("t", 0.0), f"record {number} t")
    known = _FIRST if number == 0 else _LATER
    return Reading(
        name=local,
        unit=_unit(record, base, number),
        value=_value(record, base, number),
        sum=_sum(record, base, number),
        time_s=offset_s,
        extra={k: v for k, v in record.items() if k not in known},
    )


def _unit(
    record: Mapping[str, Any], base: Mapping[str, Any], number: int
) -> str | None:
    if "u" in record:
        return _text(record["u"], f"record {number} u")
    return _text(base.get("bu"), "bu")


def _value(record: Mapping[str, Any], base: Mapping[str, Any], number: int) -> Value:
    labels = [label for label in _VALUES if label in record]
    if labels == _PLAIN:
        return _based(record, base, number, "v")
    if len(labels) > 1:
        raise EnvelopeError(f"record {number}", "one value at most", labels)
    if "vs" in record:
        return _text(record["vs"], f"record {number} vs")
    if "vb" in record or "vd" in record:
        value = record[labels[0]]
        if not isinstance(value, bool if labels[0] == "vb" else (bytes, str)):
            raise EnvelopeError(f"record {number} {labels[0]}", "of its type", value)
        return value
    return None


def _sum(
    record: Mapping[str, Any], base: Mapping[str, Any], number: int
) -> float | None:
    return _based(record, base, number, "s") if "s" in record else None


def _based(
    record: Mapping[str, Any], base: Mapping[str, Any], number: int, label: str
) -> float:
    """A number plus its base value; the sum may overflow."""
    base_label = f"b{label}"
    own = _number(record[label], f"record {number} {label}")
    if base_label not in base:
        return own
    total = own + _number(base[base_label], base_label)
    return _number(total, f"record {number} {label}")


def _number(value: object, label: str) -> float:
    if type(value) is float and math.isfinite(value):
        return value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    try:
        number = float(value) if is_number else math.nan  # type: ignore[arg-type]
    except OverflowError:  # an integer too large for a double
        number = math.inf
    if not math.isfinite(number):
        raise EnvelopeError(label, "a finite number", value)
    return number


def _text(value: object, label: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise EnvelopeError(label, "text", value)
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError as error:  # a lone surrogate from a JSON escape
        raise EnvelopeError(label, "text that UTF-8 can write", value) from error
    return value


def _list(value: object) -> Sequence[Any]:
    """A list of codes; empty for any other value, because `why` says the same."""
    return value if isinstance(value, list) else ()


def _node(base_name: object) -> str:
    name = _text(base_name, "bn") or ""
    node, slash, _ = name.partition("/")
    return _node_id(node if slash else "", base_name)


def _node_id(node: str, given: object) -> str:
    try:
        return check_node_id(node)
    except TopicError as error:
        raise EnvelopeError("bn", "a node id and a slash", given) from error


def _clock(value: object) -> bool:
    if type(value) not in {int, bool} or value not in {0, 1}:
        raise EnvelopeError("tq", "1 (synchronised) or 0", value)
    return bool(value)


def _boot(value: object) -> str:
    if not isinstance(value, str) or not _BOOT.fullmatch(value):
        raise EnvelopeError("boot", "1 to 32 of A-Z a-z 0-9 . _ -", value)
    return value


def _seq(value: object) -> int:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if not is_int or not 0 <= value <= MAX_SEQ:  # type: ignore[operator]
        raise EnvelopeError("seq", "an integer from 0 to 2^63-1", value)
    return value  # type: ignore[return-value]


def _priority(value: object) -> int:
    try:
        return LADDER.check(value)
    except PriorityError as error:
        raise EnvelopeError("pri", error.rule, value) from error


STATUS_PREFIX: Final = "agent/"
STATUS_QUEUED: Final = f"{STATUS_PREFIX}queued"
STATUS_OLDEST: Final = f"{STATUS_PREFIX}oldest"
STATUS_GATEWAY: Final = f"{STATUS_PREFIX}gateway"
STATUS_DROPPED: Final = f"{STATUS_PREFIX}dropped"
STATUS_BATTERY: Final = f"{STATUS_PREFIX}battery"
STATUS_UPDATE: Final = f"{STATUS_PREFIX}update"
STATUS_ALARMS: Final = f"{STATUS_PREFIX}alarms"
"""States of the alarm outputs, such as ``siren:on lamp:drill``."""

STATUS_NOTICE: Final = f"{STATUS_PREFIX}notice"
"""The notice in force: level, its time of creation and of receipt in Unix seconds."""

STATUS_DRILL: Final = f"{STATUS_PREFIX}drill"
"""The drill in force: level, and its times of creation and of receipt."""

STATUS_NO_VALUE: Final = "none"
"""Value for an empty queue, and for a node without a gateway."""
