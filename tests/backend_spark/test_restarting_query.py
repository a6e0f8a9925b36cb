"""A query is restarted if a Python worker was late, not if a batch failed."""

import pytest
from pyspark.errors import StreamingQueryException

from backend_spark.streaming.job import LATE_WORKER_ERROR, MAX_STARTS, RestartingQuery


class FailingQuery:
    """Fake query whose first runs fail; a real Python worker is late after 10 s."""

    def __init__(self, error: str, times: int) -> None:
        self.started = 0
        self._error = error
        self._times = times

    def start(self) -> "FailingQuery":
        self.started += 1
        return self

    def awaitTermination(self, *_: float) -> bool:  # noqa: N802 - Spark's
        if self.started <= self._times:
            raise StreamingQueryException(self._error)
        return True


def test_late_python_worker_restarts_the_query() -> None:
    """The batch had not begun."""
    query = FailingQuery(
        f"[STREAM_FAILED] {LATE_WORKER_ERROR}. SQLSTATE: XXKST", MAX_STARTS - 1
    )

    assert RestartingQuery(query.start).wait_until_ended(1)
    assert query.started == MAX_STARTS


def test_python_worker_that_is_always_late_is_an_error() -> None:
    """After `MAX_STARTS` the error is raised."""
    query = FailingQuery(LATE_WORKER_ERROR, MAX_STARTS)

    with pytest.raises(StreamingQueryException, match=LATE_WORKER_ERROR):
        RestartingQuery(query.start).wait_until_ended()


def test_failed_batch_is_not_restarted() -> None:
    """Its error is raised."""
    query = FailingQuery("division by zero", 1)

    with pytest.raises(StreamingQueryException, match="division"):
        RestartingQuery(query.start).wait_until_ended()
    assert query.started == 1
