"""A query whose Python was late begins again; one that failed does not."""

import pytest
from pyspark.errors import StreamingQueryException

from backend_spark.streaming.job import LATE_WORKER_ERROR, MAX_STARTS, RestartingQuery


class Late:
    """Queries of which the first few end with an error; the real one needs 10 s."""

    def __init__(self, error: str, times: int) -> None:
        self.started = 0
        self._error = error
        self._times = times

    def start(self) -> "Late":
        self.started += 1
        return self

    def awaitTermination(self, *_: float) -> bool:  # noqa: N802 - Spark's
        if self.started <= self._times:
            raise StreamingQueryException(self._error)
        return True


def test_late_python_is_started_again() -> None:
    """The batch in hand had not begun."""
    late = Late(f"[STREAM_FAILED] {LATE_WORKER_ERROR}. SQLSTATE: XXKST", MAX_STARTS - 1)

    assert RestartingQuery(late.start).wait_until_ended(1)
    assert late.started == MAX_STARTS


def test_python_that_never_comes_is_an_error() -> None:
    """It is not waited for without end."""
    late = Late(LATE_WORKER_ERROR, MAX_STARTS)

    with pytest.raises(StreamingQueryException, match=LATE_WORKER_ERROR):
        RestartingQuery(late.start).wait_until_ended()


def test_batch_that_failed_is_not_run_again_here() -> None:
    """Its error is the operator's to see."""
    late = Late("division by zero", 1)

    with pytest.raises(StreamingQueryException, match="division"):
        RestartingQuery(late.start).wait_until_ended()
    assert late.started == 1
