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

from service_runtime.errors import FieldError, YamamoriError


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


class BrokerError(YamamoriError, ConnectionError):
    """A broker refused the connection or cannot be reached.

    Attributes:
        endpoint: ``host:port`` of the broker.
        reason: What the broker or the network said.
    """

    def __init__(self, endpoint: str, reason: str) -> None:
        self.endpoint = endpoint
        self.reason = reason
        super().__init__(f"connecting to {endpoint} failed: {reason}")
