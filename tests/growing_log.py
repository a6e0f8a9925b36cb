"""An ingester's log that grows while a test kills programs that read it."""

from threading import Event, Thread
from typing import Final

from storm_log import message

from backend_spark.ingest.log import LogWriter

NODES: Final = 2


class GrowingLog:
    """An ingester's log that grows segment by segment.

    Args:
        writer: Appends to the log.
        interval_s: Time between two segments.

    Attributes:
        steps: Number of messages written for each node.
    """

    def __init__(self, writer: LogWriter, interval_s: float) -> None:
        self.steps = 0
        self._interval_s = interval_s
        self._writer = writer
        self._stopped = Event()
        self._thread = Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        while not self._stopped.wait(self._interval_s):
            self._writer.write([message(self.steps, node) for node in range(NODES)])
            self.steps += 1

    def stop(self) -> None:
        """Stop writing."""
        self._stopped.set()
        self._thread.join()

    def written(self) -> dict[tuple[str, int], int]:
        """Node and number of each message, and how often a table may have it."""
        return {(f"node-{n}", s): 1 for n in range(NODES) for s in range(self.steps)}
