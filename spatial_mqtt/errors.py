"""Errors of the shared vocabulary: one class per thing a caller can react to.

SpatialMqttError
├── PriorityError      also ValueError   a priority outside the ladder
├── PositionError      also ValueError   a latitude, longitude, level or radius
├── TopicError         also ValueError   a topic that does not parse
├── EnvelopeError      also ValueError   a payload that is not a SenML pack of ours
├── DirectoryError     also ValueError   a directory message that does not parse
├── ReceiptError       also ValueError   a custody message that does not parse
├── NoticeError        also ValueError   a notice that does not parse
├── RolloutError       also ValueError   a rollout that does not parse or hold
├── PieceError         also ValueError   a piece of a file, or the wish for one
├── PacketError        also ValueError   an MQTT packet that does not parse
├── ParcelError        also ValueError   a parcel or a chunk that does not parse
├── RenewalError       also ValueError   a wish for a certificate, or its answer
├── TlsFileError       also OSError      a file of a TLS link cannot be used
└── BrokerError        also ConnectionError  a broker refused or is out of reach
"""

MOST_SHOWN = 80


class SpatialMqttError(Exception):
    """Base of every error this package raises."""


class FieldError(SpatialMqttError, ValueError):
    """A value breaks the rule of its field.

    Attributes:
        field: Name of the field.
        rule: What the value must be, phrased to follow "must be".
        value: The value that was given.
    """

    def __init__(
        self, field: str, rule: str, value: object, remedy: str | None = None
    ) -> None:
        self.field = field
        self.rule = rule
        self.value = value
        shown = _shown(value)
        tail = f"; {remedy}" if remedy else ""
        super().__init__(f"{field} must be {rule}, got {shown}{tail}")


def _shown(value: object) -> str:
    """A value as one short line, whatever a hostile peer put into it."""
    try:
        shown = repr(value)
    except ValueError:  # an integer of more digits than Python will print
        return f"an unprintable {type(value).__name__}"
    return shown if len(shown) <= MOST_SHOWN else shown[: MOST_SHOWN - 3] + "..."


class PriorityError(FieldError):
    """A priority lies outside the ladder."""


class PositionError(FieldError):
    """A latitude, longitude, cell level or radius is out of range."""


class TopicError(FieldError):
    """A topic does not have the form its place demands."""


class EnvelopeError(FieldError):
    """A payload is not a SenML pack, or breaks a rule of the envelope."""


class DirectoryError(FieldError):
    """A directory message (gateway list, broker table, notice) does not parse."""


class ReceiptError(FieldError):
    """A custody receipt or offer does not parse."""


class PacketError(FieldError):
    """An MQTT packet does not parse."""


class ParcelError(FieldError):
    """A parcel of messages, or a chunk of one, does not parse."""


class NoticeError(FieldError):
    """A notice for an area does not parse."""


class RolloutError(FieldError):
    """A rollout does not parse, or is no newer one."""


class PieceError(FieldError):
    """A piece of a large file, or the want of one, does not parse."""


class RenewalError(FieldError):
    """A wish for a new certificate, or the answer to it, is not right."""


class TlsFileError(SpatialMqttError, OSError):
    """A file of a TLS link cannot be used.

    Attributes:
        field: The key of the settings that names it.
        path: Its path.
        reason: What is wrong with it.
    """

    def __init__(self, field: str, path: str, reason: str) -> None:
        self.field = field
        self.path = path
        self.reason = reason
        super().__init__(f"{field} {path!r} cannot be used: {reason}")


class BrokerError(SpatialMqttError, ConnectionError):
    """A broker refused the connection or cannot be reached.

    Attributes:
        endpoint: ``host:port`` of the broker.
        reason: What the broker or the network said.
    """

    def __init__(self, endpoint: str, reason: str) -> None:
        self.endpoint = endpoint
        self.reason = reason
        super().__init__(f"connecting to {endpoint} failed: {reason}")
