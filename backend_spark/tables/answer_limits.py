"""Limits of the work for one answer to another program, and of answers at once."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from backend_spark.errors import StandardsRequestError

ANSWER_S: Final = 10.0
MAX_AT_ONCE: Final = 2
WAIT_S: Final = 5.0
"""Maximum time that a request waits for others to end."""

MAX_ENTITIES: Final = 10_000
"""Entities of one answer, with those inside of others."""


@dataclass
class AnswerBudget:
    """Work that one answer may still do.

    Attributes:
        until_s: When its time is over.
        monotonic: The clock.
        entities: Entities that it may still hold.
    """

    until_s: float
    monotonic: Callable[[], float]
    entities: int = MAX_ENTITIES

    def is_over(self) -> bool:
        """Whether time or entities are used up."""
        return self.entities <= 0 or self.monotonic() > self.until_s


class AnswerLimits:
    """Places in which answers are computed; for several threads.

    Args:
        monotonic: Clock for the time of an answer.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._places = threading.Semaphore(MAX_AT_ONCE)

    @contextmanager
    def turn(self) -> Iterator[AnswerBudget]:
        """Wait for a place; the answer's time begins then.

        Raises:
            StandardsRequestError: None became free in time.
        """
        if not self._places.acquire(timeout=WAIT_S):
            rule = f"sent again later: {MAX_AT_ONCE} others are being answered"
            raise StandardsRequestError("request", rule, "one more", status=503)
        try:
            yield AnswerBudget(self._monotonic() + ANSWER_S, self._monotonic)
        finally:
            self._places.release()
