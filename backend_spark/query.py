"""A streaming query that is started again when Spark's Python was late."""

import logging
from collections.abc import Callable
from typing import Final

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

LATE: Final = "Python worker failed to connect back"
STARTS: Final = 6


class Query:
    """One streaming query and the way to start it.

    Spark gives the Python of a source ten seconds to start, a figure that no setting
    changes. On a crowded machine it needs more, and the query would end although
    nothing is wrong: the batch in hand has not begun.

    Args:
        start: Starts the query, from its checkpoint.
    """

    def __init__(self, start: Callable[[], StreamingQuery]) -> None:
        self._start = start
        self._query = start()
        self._left = STARTS - 1

    def ended(self, within_s: float | None = None) -> bool:
        """Whether all there was is done; waits so long, or until it is.

        Raises:
            StreamingQueryException: A batch failed, or Python was late six times.
        """
        while True:
            try:
                if within_s is None:
                    self._query.awaitTermination()
                    return True
                # Typed as whole seconds; parts of one are taken, too.
                return bool(self._query.awaitTermination(within_s))  # type: ignore[arg-type]
            except StreamingQueryException as error:
                if LATE not in str(error) or not self._left:
                    raise
                self._left -= 1
                log.warning("Spark's Python took over 10 s to start; starting it again")
                self._query = self._start()

    def stop(self) -> None:
        """End it."""
        self._query.stop()
