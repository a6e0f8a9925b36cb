"""Truncated and bit-flipped queue files, at places of chance."""

import logging
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from soak.conftest import Scale
from soak.damage import (
    Files,
    Harm,
    cut_file,
    cut_log,
    flip_file,
    flip_log,
    flip_payloads,
    is_torn,
    move_log_into_file,
    whole_bytes,
)

from edge_agent.queue.base import MessageDraft, QueuedMessage
from edge_agent.queue.sqlite_queue import SqliteQueue
from spatial_mqtt.senml import MessageId

COUNT = 400
LOGGED_FROM = 340
FOREIGN = 4


def open_queue(path: Path) -> SqliteQueue:
    return SqliteQueue(path, "kochi-0001", "boot", 10**8)


def draft(number: int, chance: random.Random) -> MessageDraft:
    """A message of the node, or (each fourth) of another one, as a gateway has them."""
    body = chance.randbytes(chance.randint(60, 600))
    priority = 1 + number % 5
    foreign = MessageId("far", f"b{number % 3}", number)
    id_ = foreign if number % FOREIGN == 0 else None
    return MessageDraft(priority, f"/forward/1/2/{number}", lambda _id: body, id_)


Left = tuple[Files, dict[MessageId, QueuedMessage]]


@pytest.fixture
def left(tmp_path: Path) -> Left:
    """What a killed process left, part in the file and part in the log."""
    path, chance = tmp_path / "whole" / "q.db", random.Random(7)
    queue = open_queue(path)
    for number in range(COUNT):
        queue.put([draft(number, chance)])
        if number == LOGGED_FROM:
            move_log_into_file(path)
    held = {m.id: m for m in queue.lease(COUNT)}
    files = Files.read(path)
    queue.close()
    assert len(held) == COUNT
    return files, held


class Trial:
    """One damaged file, opened."""

    def __init__(self, folder: Path, left: Left, harm: Harm, seed: int) -> None:
        before, self.exclusive = left
        files = before.copy()
        chance = random.Random(seed)
        harm(files, chance, [m.payload for m in self.exclusive.values()])
        whole = whole_bytes(before, files)
        self.is_torn = is_torn(before, files)
        self.survivors = {i for i, m in self.exclusive.items() if m.payload in whole}
        path = folder / "trial" / "q.db"
        path.parent.mkdir()
        files.write(path)
        queue = open_queue(path)
        self.leased = {m.id: m for m in queue.lease(COUNT * 2)}
        self.new = queue.put([draft(COUNT + 1, chance), draft(COUNT + 4, chance)])
        self.dropped = sum(queue.stats().dropped.values())
        queue.close()
        shutil.rmtree(path.parent)

    @property
    def overlooked(self) -> set[MessageId]:
        """Messages that survived and were not leased."""
        return self.survivors - self.leased.keys()

    @property
    def reused(self) -> set[MessageId | None]:
        """Ids that were given to new messages although they had been given before."""
        return self.exclusive.keys() & set(self.new)

    @property
    def altered(self) -> list[QueuedMessage]:
        """Messages that were leased although something in them is not as it was."""
        return [m for i, m in self.leased.items() if self._differs(i, m)]

    def _differs(self, id_: MessageId, now: QueuedMessage) -> bool:
        was = self.exclusive.get(id_)
        told = (now.payload, now.topic, now.priority)
        return was is None or told != (was.payload, was.topic, was.priority)


@pytest.fixture
def attempt(left: Left, tmp_path: Path) -> Callable[[Harm, int], Trial]:
    """Damage what was left and open it."""
    return lambda harm, seed: Trial(tmp_path, left, harm, seed)


@pytest.mark.parametrize(
    "harm",
    [
        cut_file,
        cut_log,
        flip_payloads,
        flip_file,
        flip_log,
    ],
)
def test_every_row_on_a_sound_page_is_leased_as_it_was(
    attempt: Callable[[Harm, int], Trial],
    harm: Harm,
    scale: Scale,
    caplog: pytest.LogCaptureFixture,
    report: Callable[..., None],
) -> None:
    """The queue opens and takes new messages; what it lost it says."""
    totals: Counter[str] = Counter()
    for seed in range(scale.damages):
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            trial = attempt(harm, seed)
        is_told = bool(caplog.records) or trial.dropped > 0 or trial.is_torn
        totals.update(
            files=1,
            leased=len(trial.leased),
            of=COUNT,
            overlooked=len(trial.overlooked),
            altered=len(trial.altered),
            unsaid=len(trial.leased) < COUNT and not is_told,
            refused_new=None in trial.new,
        )
    report(harm=harm.__name__, **totals)
    assert totals["overlooked"] == totals["altered"] == 0
    assert totals["unsaid"] == totals["refused_new"] == 0


def test_a_file_that_went_back_in_time_gives_no_id_twice(
    attempt: Callable[[Harm, int], Trial],
) -> None:
    """Receivers would take a new message for an old one, and say they have it."""
    assert [attempt(cut_log, seed).reused for seed in range(10)] == [set()] * 10
