"""The live overlay: gateways killed in the middle, and emergencies under load.

    python -m experiments.overlay_live [--gateways 32] [--brokers 8] [--seconds 30]

Every gateway is a process; they meet on several real Mosquittos. Bars: every live
subscriber has every message once although 10 % of the gateways are killed -9 in the
middle; level 0 is whole again within 30 s; at 0.7 load the p99 of priority 5 is within
twice that of the idle overlay.
"""

import argparse
import contextlib
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from experiments.bench.fleet import Fleet, Member, wait_until
from gateway_daemon.gateway.overlay_fallback import REPEATS_S

EVERY_S = 0.25
WAIT_S = 240.0
PAYLOAD_BYTES = 1000
LOAD_RATE = 12_500.0
"""100 kbit/s, the radio between valleys."""


@dataclass
class Killed:
    """What came of the kill.

    Attributes:
        repeated: Deliveries that only the repetition brought, which a gateway makes of
            every emergency: a ring under repair may hide somebody from a publisher.
    """

    messages: int
    killed: int
    repeated: int
    missing: int
    doubled: int
    healed_s: float
    p50_ms: float
    p99_ms: float
    last_ms: float


def say(publisher: Member, id_: str, priority: int) -> float:
    """Publish; when."""
    publisher.say("publish", id_, priority)
    return time.monotonic()


def gather(fleet: Fleet) -> float:
    """Wait until all are in one ring."""
    return wait_until(fleet.is_ring, WAIT_S)


def kill_in_the_middle(fleet: Fleet, seconds: float, seed: int = 0) -> Killed:
    """Publish emergencies all the while, and kill a tenth of the gateways."""
    publishers, others = fleet.alive[:2], fleet.alive[2:]
    chance = random.Random(seed)  # noqa: S311 - chance
    victims = chance.sample(others, max(1, len(fleet.alive) // 10))
    sent: dict[str, float] = {}
    killed_s = healed_s = 0.0
    start_s = time.monotonic()
    while (now_s := time.monotonic() - start_s) < seconds or not healed_s:
        if not killed_s and now_s > seconds / 4:
            fleet.kill(victims)
            killed_s = time.monotonic()
        id_ = f"m{len(sent)}"
        sent[id_] = say(publishers[len(sent) % 2], id_, 5)
        if killed_s and not healed_s and fleet.is_ring():
            healed_s = time.monotonic() - killed_s
        if now_s > WAIT_S:
            raise TimeoutError("the ring did not heal")
        time.sleep(EVERY_S)

    def is_done() -> bool:
        ends = [*publishers[0].ended.items(), *publishers[1].ended.items()]
        return sum(told[-1][1] for _, told in ends) == len(sent)

    wait_until(is_done, WAIT_S)
    time.sleep(1.0)
    repeated = repeat(fleet, publishers, sent)
    heard = [(member.heard[id_], at_s) for member in fleet.alive
             for id_, at_s in sent.items()]  # fmt: skip
    delays_ms = sorted(1000 * (times[0] - at_s) for times, at_s in heard if times)
    return Killed(
        len(sent),
        len(victims),
        repeated,
        sum(not times for times, _ in heard),
        sum(len(times) > 1 for times, _ in heard),
        healed_s,
        delays_ms[len(delays_ms) // 2],
        delays_ms[int(0.99 * len(delays_ms))],
        delays_ms[-1],
    )


def repeat(fleet: Fleet, publishers: list[Member], sent: dict[str, float]) -> int:
    """Publish again what somebody missed, when its gateway would; how much it was."""

    def missed() -> list[str]:
        return [i for member in fleet.alive for i in sent if not member.heard[i]]

    found = missed()
    for id_ in dict.fromkeys(found):
        time.sleep(max(0.0, sent[id_] + REPEATS_S[0] - time.monotonic()))
        say(publishers[[*sent].index(id_) % 2], id_, 5)
    with contextlib.suppress(TimeoutError):
        wait_until(lambda: not missed(), WAIT_S)
    return len(found)


def delays_of_emergencies(
    fleet: Fleet, seconds: float, name: str, per_s: float
) -> list[float]:
    """Milliseconds of every delivery of priority 5, beside others of 1 to 4.

    Args:
        fleet: In one ring.
        seconds: How long to publish.
        name: Of the messages.
        per_s: Routine messages in a second, from gateways by chance.
    """
    chance = random.Random(name)  # noqa: S311 - chance
    sent: dict[str, float] = {}
    start_s = time.monotonic()
    next_s, count = 0.0, 0
    while (now_s := time.monotonic() - start_s) < seconds:
        if len(sent) <= now_s:  # one a second
            id_ = f"{name}-5-{len(sent)}"
            sent[id_] = say(chance.choice(fleet.alive), id_, 5)
        while per_s and next_s <= now_s:
            count += 1
            say(chance.choice(fleet.alive), f"{name}-{count}", chance.randint(1, 4))
            next_s += chance.expovariate(per_s)
        time.sleep(0.005)
    wait_until(lambda: all(m.heard.get(i) for m in fleet.alive for i in sent), WAIT_S)
    return sorted(
        1000 * (member.heard[id_][0] - at_s)
        for member in fleet.alive
        for id_, at_s in sent.items()
    )


def under_load(fleet: Fleet, seconds: float) -> tuple[float, float, float]:
    """p99 of priority 5 idle and at 0.7 load, in ms; and routine messages a second."""
    for turn in range(2):  # the first gives a publisher its key, the second its heads
        for member in fleet.alive:
            say(member, f"learn-{turn}-{member.id}", 4)
        time.sleep(LEARN_S)
    idle = delays_of_emergencies(fleet, seconds, "idle", 0.0)
    # A message costs one copy for each gateway, shared by all their links.
    per_s = 0.7 * LOAD_RATE / COPY_BYTES - 1.0
    loaded = delays_of_emergencies(fleet, seconds, "loaded", per_s)
    return idle[int(0.99 * len(idle))], loaded[int(0.99 * len(loaded))], per_s


LEARN_S = 15.0
COPY_BYTES = PAYLOAD_BYTES + 450.0
"""What a copy, its receipt and its report put on a link."""


def main() -> None:
    """Both scenarios, as lines for people."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gateways", type=int, default=32)
    parser.add_argument("--brokers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with Fleet(asked.gateways, asked.brokers, Path(folder)) as fleet:
            print(f"{asked.gateways} gateways in one ring after {gather(fleet):.0f} s")
            print(kill_in_the_middle(fleet, asked.seconds), flush=True)
        more = ["--rate", str(LOAD_RATE), "--payload", str(PAYLOAD_BYTES)]
        with Fleet(asked.gateways, asked.brokers, Path(folder), *more) as fleet:
            gather(fleet)
            idle_ms, loaded_ms, per_s = under_load(fleet, asked.seconds)
            print(f"p99 of priority 5: idle {idle_ms:.0f} ms, with {per_s:.1f} routine "
                  f"messages a second {loaded_ms:.0f} ms")  # fmt: skip


if __name__ == "__main__":
    main()
