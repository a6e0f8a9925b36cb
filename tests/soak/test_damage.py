"""Queue files truncated and with flipped bits at random positions."""

import logging
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from soak.conftest import Scale
from soak.damage import (
    Damage,
    Files,
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
    """A message of the node or (every fourth) of another one, as in a gateway."""
    body = chance.randbytes(chance.randint(60, 600))
    priority = 1 + number % 5
    foreign = MessageId("far", f"b{number % 3}", number)
    id_ = foreign if number % FOREIGN == 0 else None
    return MessageDraft(priority, f"/forward/1/2/{number}", lambda _id: body, id_)


Left = tuple[Files, dict[MessageId, QueuedMessage]]


@pytest.fixture
def left(tmp_path: Path) -> Left:
    """The files of a killed process, with messages in the file and in the log."""
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
    """One damaged file, and the queue's state after opening it."""

    def __init__(self, folder: Path, left: Left, damage: Damage, seed: int) -> None:
        before, self.stored = left
        files = before.copy()
        chance = random.Random(seed)
        damage(files, chance, [m.payload for m in self.stored.values()])
        whole = whole_bytes(before, files)
        self.is_torn = is_torn(before, files)
        self.survivors = {i for i, m in self.stored.items() if m.payload in whole}
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
    def missed(self) -> set[MessageId]:
        """Messages that survived and were not leased."""
        return self.survivors - self.leased.keys()

    @property
    def reused(self) -> set[MessageId | None]:
        """Ids of new messages that had been assigned before."""
        return self.stored.keys() & set(self.new)

    @property
    def altered(self) -> list[QueuedMessage]:
        """Leased messages that differ from those that were put."""
        return [m for i, m in self.leased.items() if self._differs(i, m)]

    def _differs(self, id_: MessageId, now: QueuedMessage) -> bool:
        was = self.stored.get(id_)
        found = (now.payload, now.topic, now.priority)
        return was is None or found != (was.payload, was.topic, was.priority)


@pytest.fixture
def attempt(left: Left, tmp_path: Path) -> Callable[[Damage, int], Trial]:
    """Damage the files and open them."""
    return lambda damage, seed: Trial(tmp_path, left, damage, seed)


@pytest.mark.parametrize(
    "damage",
    [
        cut_file,
        cut_log,
        flip_payloads,
        flip_file,
        flip_log,
    ],
)
def test_every_row_on_an_intact_page_is_leased_unchanged(
    attempt: Callable[[Damage, int], Trial],
    damage: Damage,
    scale: Scale,
    caplog: pytest.LogCaptureFixture,
    report: Callable[..., None],
) -> None:
    """The queue opens and accepts new messages; it reports every loss."""
    totals: Counter[str] = Counter()
    for seed in range(scale.damages):
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            trial = attempt(damage, seed)
        is_reported = bool(caplog.records) or trial.dropped > 0 or trial.is_torn
        totals.update(
            files=1,
            leased=len(trial.leased),
            of=COUNT,
            missed=len(trial.missed),
            altered=len(trial.altered),
            unreported=len(trial.leased) < COUNT and not is_reported,
            refused_new=None in trial.new,
        )
    report(damage=damage.__name__, **totals)
    assert totals["missed"] == totals["altered"] == 0
    assert totals["unreported"] == totals["refused_new"] == 0


def test_truncated_log_reuses_no_id(
    attempt: Callable[[Damage, int], Trial],
) -> None:
    """Receivers would discard a message with a reused id as a duplicate."""
    assert [attempt(cut_log, seed).reused for seed in range(10)] == [set()] * 10
