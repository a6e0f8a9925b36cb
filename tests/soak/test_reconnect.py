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
POLL_INTERVAL_S = 0.25 + 0.2
"""Longest time until a waiting connection notices an urgent message: the uplink's
`IDLE_POLL_S` plus the connection's `WAKE_INTERVAL_S`."""

Wait = Callable[[random.Random], Callable[[], float]]


@dataclass(frozen=True)
class Storm:
    """Connection attempts at a gateway.

    Attributes:
        while_down_per_s: Attempts in the busiest second while it was down.
        back_per_s: Nodes that reconnected in the busiest second after that.
        all_back_s: Seconds from the gateway's return until all had reconnected.
    """

    while_down_per_s: int
    back_per_s: int
    all_back_s: float


def jittered(rng: random.Random) -> Callable[[], float]:
    """Backoff of a connection without urgent messages."""
    return Backoff(rng).next_wait_s


def hurried(rng: random.Random) -> Callable[[], float]:
    """Backoff with urgent messages, as in `Connection`: the shorter of two waits."""
    backoff = Backoff(rng)
    return lambda: min(
        backoff.next_wait_s(),
        rng.uniform(0.0, POLL_INTERVAL_S) + backoff.urgent_wait_s(),
    )


def fixed(seconds: float) -> Wait:
    """A client without jitter; its nodes differ only by their links."""
    return lambda rng: lambda: seconds + rng.uniform(0.0, 0.05)


def simulate(wait: Wait, seed: int) -> Storm:
    """Simulate a gateway that is down from 0 to `DOWN_S`."""
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
    """The maximum of each number over several storms."""
    storms = [simulate(wait, seed) for seed in range(runs)]
    return Storm(
        max(s.while_down_per_s for s in storms),
        max(s.back_per_s for s in storms),
        max(s.all_back_s for s in storms),
    )


@pytest.fixture
def runs(scale: Scale) -> int:
    return 50 if scale.is_long else 5


def test_nodes_with_routine_messages_reconnect_a_few_at_a_time(
    runs: int, report: Callable[..., None]
) -> None:
    """At most 100 of 1,000 in one second, all within the backoff's cap of 60 s.

    The worst of 200 storms had 87. With the usual fixed wait of 3 s or 60 s, all
    1,000 reconnect in one second.
    """
    ours = worst(jittered, runs)
    three, sixty = worst(fixed(3.0), runs), worst(fixed(60.0), runs)

    report(ours=ours, fixed_3_s=three, fixed_60_s=sixty)
    assert ours.back_per_s <= 100
    assert ours.all_back_s <= Backoff(random.Random()).cap_s
    assert three.back_per_s > 900
    assert sixty.back_per_s > 900


def test_nodes_with_urgent_messages_reconnect_within_seconds(
    runs: int, report: Callable[..., None]
) -> None:
    """All reconnect within 8.5 s; at most 350 of 1,000 in one second.

    Urgent reconnects trade spread for a short delay; with a wait that stays at two
    seconds, 728 reconnected in one second.
    """
    ours = worst(hurried, runs)

    report(ours=ours)
    max_s = Backoff(random.Random()).urgent_max_cap_s + POLL_INTERVAL_S
    assert ours.all_back_s <= max_s
    assert ours.back_per_s <= 350
