"""Errors of messages and connections: one class per kind that a caller can handle.

FieldError
├── PriorityError      also ValueError   a priority outside the ladder
├── PositionError      also ValueError   a latitude, longitude, level or radius
├── TopicError         also ValueError   a topic that does not parse
├── EnvelopeError      also ValueError   a payload that is not a valid SenML pack
├── DirectoryError     also ValueError   a directory message that does not parse
├── ReceiptError       also ValueError   a custody message that does not parse
├── NoticeError        also ValueError   a notice that does not parse
├── RolloutError       also ValueError   a rollout that does not parse or hold
├── FileChunkError     also ValueError   a chunk of a file, or the request for one
├── PacketError        also ValueError   an MQTT packet that does not parse
├── BatchError         also ValueError   a batch or a fragment that does not parse
└── RenewalError       also ValueError   a certificate request, or its answer

BrokerError (YamamoriError) is also a ConnectionError: a broker refused the connection
or is not reachable.
"""

from service_runtime.errors import FieldError, YamamoriError


class PriorityError(FieldError):
    """A priority lies outside the ladder."""


class PositionError(FieldError):
    """A latitude, longitude, cell level or radius is out of range."""


class TopicError(FieldError):
    """A topic does not have the required form."""


class EnvelopeError(FieldError):
    """A payload is not a SenML pack, or breaks a rule of the envelope."""


class DirectoryError(FieldError):
    """A directory message (gateway list, broker table, notice) does not parse."""


class ReceiptError(FieldError):
    """A custody receipt or offer does not parse."""


class PacketError(FieldError):
    """An MQTT packet does not parse."""


class BatchError(FieldError):
    """A batch of messages, or a fragment of one, does not parse."""


class NoticeError(FieldError):
    """A notice for an area does not parse."""


class RolloutError(FieldError):
    """A rollout does not parse, or is not newer."""


class FileChunkError(FieldError):
    """A chunk of a large file, or the request for one, does not parse."""


class RenewalError(FieldError):
    """A request for a new certificate, or the answer to it, is invalid."""


class BrokerError(YamamoriError, ConnectionError):
    """A broker refused the connection or cannot be reached.

    Attributes:
        endpoint: ``host:port`` of the broker.
        reason: Reason given by the broker or the network.
    """

    def __init__(self, endpoint: str, reason: str) -> None:
        self.endpoint = endpoint
        self.reason = reason
        super().__init__(f"connecting to {endpoint} failed: {reason}")
