"""A full disk: wait until there is room, and acknowledge nothing meanwhile."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from backend_spark.durability import is_full
from backend_spark.ingest.log import LogRow, SegmentWriter

log = logging.getLogger(__name__)

RETRY_S: Final = 0.5


@dataclass
class Patience:
    """Appends to the log, however long it takes.

    Attributes:
        rest: Waits for so many seconds; whether we are told to stop.
        is_full: Whether the disk is, as far as we know.
    """

    rest: Callable[[float], bool]
    is_full: bool = False

    def append(
        self, writer: SegmentWriter, rows: Sequence[LogRow], beat: Callable[[], None]
    ) -> int | None:
        """Write a segment, when there is room for it.

        Returns:
            Its bytes; None when we were told to stop before it was on disk.

        Raises:
            OSError: The disk refused for another reason than being full.
        """
        while True:
            try:
                path = writer.append(rows)
            except OSError as error:
                if not is_full(error):
                    raise
                self._tell(writer, error)
                beat()
                if self.rest(RETRY_S):
                    return None
            else:
                self.is_full = False
                return path.stat().st_size

    def _tell(self, writer: SegmentWriter, error: OSError) -> None:
        if not self.is_full:
            words = "%s: %s; nothing is acknowledged until there is room"
            log.error(words, writer.folder, error.strerror)
        self.is_full = True
