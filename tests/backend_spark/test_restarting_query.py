"""A query is restarted if a Python worker was late, not if a batch failed."""

import pytest
from pyspark.errors import StreamingQueryException

from backend_spark.streaming.session import LATE_S, LATE_WORKER_ERROR, RestartingQuery

STARTS_LATE_S = 12.0
RUNS_S = 3600.0


class FailingQuery:
    """Fake query whose first runs fail; a real Python worker is late after 10 s."""

    def __init__(self, error: str, times: float, lasts_s: float = 0.0) -> None:
        self.started = 0
        self.now_s = 0.0
        self._error = error
        self._times = times
        self._lasts_s = lasts_s

    def start(self) -> "FailingQuery":
        self.started += 1
        return self

    def awaitTermination(self, *_: float) -> bool:  # noqa: N802 - Spark's
        self.now_s += self._lasts_s
        if self.started <= self._times:
            raise StreamingQueryException(self._error)
        return True

    def restarting(self) -> RestartingQuery:
        return RestartingQuery(self.start, lambda: self.now_s)


def test_late_python_worker_restarts_the_query() -> None:
    """The batch had not begun."""
    error = f"[STREAM_FAILED] {LATE_WORKER_ERROR}. SQLSTATE: XXKST"
    query = FailingQuery(error, 20, STARTS_LATE_S)

    assert query.restarting().wait_until_ended(1)
    assert query.started == 21


def test_python_worker_that_is_always_late_is_an_error() -> None:
    """After `LATE_S` the error is raised."""
    query = FailingQuery(LATE_WORKER_ERROR, float("inf"), STARTS_LATE_S)

    with pytest.raises(StreamingQueryException, match=LATE_WORKER_ERROR):
        query.restarting().wait_until_ended()
    assert query.now_s == pytest.approx(LATE_S, abs=STARTS_LATE_S)


def test_late_workers_of_earlier_days_do_not_count() -> None:
    """A job that runs for years has some."""
    query = FailingQuery(LATE_WORKER_ERROR, 100, RUNS_S)

    assert query.restarting().wait_until_ended(1)
    assert query.started == 101


def test_failed_batch_is_not_restarted() -> None:
    """Its error is raised."""
    query = FailingQuery("division by zero", 1)

    with pytest.raises(StreamingQueryException, match="division"):
        query.restarting().wait_until_ended()
    assert query.started == 1
