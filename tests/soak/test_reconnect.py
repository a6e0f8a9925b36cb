"""A thousand nodes lose one gateway for a minute, and come back."""

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from soak.conftest import Scale

from spatial_mqtt.connection import Backoff

NODES = 1000
DOWN_S = 60.0
LOOKS_EVERY_S = 0.25 + 0.2
"""How late a waiting connection learns of something urgent, at most: the uplink's
`IDLE_POLL_S` and the connection's `WAKE_INTERVAL_S`."""

Wait = Callable[[random.Random], Callable[[], float]]


@dataclass(frozen=True)
class Storm:
    """What a gateway saw.

    Attributes:
        while_down_per_s: Attempts in the busiest second while it was down.
        back_per_s: Nodes that came back in the busiest second after that.
        all_back_s: When the last one was back, after the gateway was.
    """

    while_down_per_s: int
    back_per_s: int
    all_back_s: float


def jittered(rng: random.Random) -> Callable[[], float]:
    """A connection with nothing urgent to send."""
    return Backoff(rng).next_wait_s


def hurried(rng: random.Random) -> Callable[[], float]:
    """One that has, as `Connection` waits then: the shorter of the two waits."""
    backoff = Backoff(rng)
    return lambda: min(
        backoff.next_wait_s(), rng.uniform(0.0, LOOKS_EVERY_S) + backoff.urgent_wait_s()
    )


def fixed(seconds: float) -> Wait:
    """What a client without jitter does; its nodes differ by their links only."""
    return lambda rng: lambda: seconds + rng.uniform(0.0, 0.05)


def simulate(wait: Wait, seed: int) -> Storm:
    """The gateway is gone from 0 to `DOWN_S`; who comes later finds it."""
    rng = random.Random(seed)
    waits = [wait(random.Random(rng.random())) for _ in range(NODES)]
    due = [(next_s(), number) for number, next_s in enumerate(waits)]
    heapq.heapify(due)
    failed: Counter[int] = Counter()
    back: list[float] = []
    while due:
        at_s, number = heapq.heappop(due)
        if at_s >= DOWN_S:
            back.append(at_s - DOWN_S)
        else:
            failed[int(at_s)] += 1
            heapq.heappush(due, (at_s + waits[number](), number))
    per_second = Counter(map(int, back))
    busiest = max(failed.values(), default=0)
    return Storm(busiest, max(per_second.values()), max(back))


def worst(wait: Wait, runs: int) -> Storm:
    """The worst of several storms, each number by itself."""
    storms = [simulate(wait, seed) for seed in range(runs)]
    return Storm(
        max(s.while_down_per_s for s in storms),
        max(s.back_per_s for s in storms),
        max(s.all_back_s for s in storms),
    )


@pytest.fixture
def runs(scale: Scale) -> int:
    return 50 if scale.is_long else 5


def test_nodes_with_routine_messages_come_back_a_few_at_a_time(
    runs: int, report: Callable[..., None]
) -> None:
    """At most 100 of 1,000 in one second, all within the backoff's cap of 60 s.

    The worst of 200 storms had 87. A fixed wait of 3 s or of 60 s, the usual ones,
    brings all 1,000 in one second.
    """
    ours = worst(jittered, runs)
    three, sixty = worst(fixed(3.0), runs), worst(fixed(60.0), runs)

    report(ours=ours, fixed_3_s=three, fixed_60_s=sixty)
    assert ours.back_per_s <= 100
    assert ours.all_back_s <= Backoff(random.Random()).cap_s
    assert three.back_per_s > 900
    assert sixty.back_per_s > 900


def test_nodes_with_urgent_messages_come_back_within_seconds(
    runs: int, report: Callable[..., None]
) -> None:
    """All are back within 8.5 s; at most 350 of 1,000 come in one second.

    Urgency buys a short delay and pays with the spread; with a wait that stays at
    two seconds, 728 came in one second.
    """
    ours = worst(hurried, runs)

    report(ours=ours)
    most_s = Backoff(random.Random()).urgent_max_cap_s + LOOKS_EVERY_S
    assert ours.all_back_s <= most_s
    assert ours.back_per_s <= 350
