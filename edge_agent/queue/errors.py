"""Errors of the queue."""


class QueueError(Exception):
    """Base of the queue's errors."""


class QueueFullError(QueueError, OSError):
    """The queue's budget is spent.

    Attributes:
        bytes_held: Payload bytes in the queue.
        max_bytes: The budget.
    """

    def __init__(self, bytes_held: int, max_bytes: int) -> None:
        self.bytes_held = bytes_held
        self.max_bytes = max_bytes
        super().__init__(
            f"queue is full: {bytes_held} of {max_bytes} bytes; "
            "raise queue.max_bytes or restore the uplink"
        )


class QueueFileError(QueueError, OSError):
    """The queue's file cannot be used.

    Attributes:
        path: The file.
        reason: Why.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"queue file {path} cannot be used: {reason}")


class QueueDiskFullError(QueueFileError):
    """The disk is full; what is stored stays, and may be leased and acknowledged."""

    def __init__(self, path: str) -> None:
        super().__init__(
            path,
            "its disk is full; free space there, restore the uplink, "
            "or lower queue.max_bytes",
        )
