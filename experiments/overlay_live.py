"""The live overlay: gateways killed during publication, and emergencies under load.

    python -m experiments.overlay_live [--gateways 32] [--brokers 8] [--seconds 30]
    python -m experiments.overlay_live --gateways 4 --valleys 8

Every gateway is a process; they use several real Mosquittos. Targets: every live
subscriber receives every message once although 10 % of the gateways are ended with
SIGKILL; level 0 is complete again within 30 s; at 0.7 load the p99 of priority 5 is at
most twice that of the idle overlay. With ``--valleys`` only the start of an outage:
every gateway publishes in as many new areas, and an emergency follows a second later.
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

INTERVAL_S = 0.25
TIMEOUT_S = 240.0
PAYLOAD_BYTES = 1000
LOAD_RATE = 12_500.0
"""Bytes per second: 100 kbit/s, the radio between valleys."""


@dataclass
class Killed:
    """Result of `kill_in_the_middle`.

    Attributes:
        repeated: Deliveries by the repetition only, which a gateway makes of every
            emergency, because a ring under repair may hide nodes from a publisher.
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


def publish(publisher: Member, id_: str, priority: int) -> float:
    """Publish a message; return the time."""
    publisher.send_command("publish", id_, priority)
    return time.monotonic()


def gather(fleet: Fleet) -> float:
    """Wait until all gateways are in one ring; return how long it took, in seconds."""
    return wait_until(fleet.is_ring, TIMEOUT_S)


def kill_in_the_middle(fleet: Fleet, seconds: float, seed: int = 0) -> Killed:
    """Publish emergencies continuously, and kill a tenth of the gateways meanwhile."""
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
        sent[id_] = publish(publishers[len(sent) % 2], id_, 5)
        if killed_s and not healed_s and fleet.is_ring():
            healed_s = time.monotonic() - killed_s
        if now_s > TIMEOUT_S:
            raise TimeoutError("the ring did not heal")
        time.sleep(INTERVAL_S)

    def is_done() -> bool:
        results = [*publishers[0].results.items(), *publishers[1].results.items()]
        return sum(outcomes[-1][1] for _, outcomes in results) == len(sent)

    wait_until(is_done, TIMEOUT_S)
    time.sleep(1.0)
    repeated = repeat(fleet, publishers, sent)
    received = [(member.received[id_], at_s) for member in fleet.alive
                for id_, at_s in sent.items()]  # fmt: skip
    delays_ms = sorted(1000 * (times[0] - at_s) for times, at_s in received if times)
    return Killed(
        len(sent),
        len(victims),
        repeated,
        sum(not times for times, _ in received),
        sum(len(times) > 1 for times, _ in received),
        healed_s,
        delays_ms[len(delays_ms) // 2],
        delays_ms[int(0.99 * len(delays_ms))],
        delays_ms[-1],
    )


def repeat(fleet: Fleet, publishers: list[Member], sent: dict[str, float]) -> int:
    """Repeat missed messages when a gateway would; return the deliveries missed."""

    def missed() -> list[str]:
        return [i for member in fleet.alive for i in sent if not member.received[i]]

    missed_before = missed()
    for id_ in dict.fromkeys(missed_before):
        time.sleep(max(0.0, sent[id_] + REPEATS_S[0] - time.monotonic()))
        publish(publishers[[*sent].index(id_) % 2], id_, 5)
    with contextlib.suppress(TimeoutError):
        wait_until(lambda: not missed(), TIMEOUT_S)
    return len(missed_before)


def delays_of_emergencies(
    fleet: Fleet, seconds: float, name: str, per_s: float
) -> list[float]:
    """Return the delays (ms) of priority 5, beside routine messages of 1 to 4.

    Args:
        fleet: Gateways in one ring.
        seconds: How long to publish.
        name: Prefix of the message ids.
        per_s: Routine messages per second, from random gateways.
    """
    chance = random.Random(name)  # noqa: S311 - chance
    sent: dict[str, float] = {}
    start_s = time.monotonic()
    next_s, count = 0.0, 0
    while (now_s := time.monotonic() - start_s) < seconds:
        if len(sent) <= now_s:  # one a second
            id_ = f"{name}-5-{len(sent)}"
            sent[id_] = publish(chance.choice(fleet.alive), id_, 5)
        while per_s and next_s <= now_s:
            count += 1
            publish(chance.choice(fleet.alive), f"{name}-{count}", chance.randint(1, 4))
            next_s += chance.expovariate(per_s)
        time.sleep(0.005)
    wait_until(
        lambda: all(m.received.get(i) for m in fleet.alive for i in sent), TIMEOUT_S
    )
    return sorted(
        1000 * (member.received[id_][0] - at_s)
        for member in fleet.alive
        for id_, at_s in sent.items()
    )


def under_load(fleet: Fleet, seconds: float) -> tuple[float, float, float]:
    """Return the p99 of priority 5, idle and at 0.7 load (ms), and routine messages/s.

    Two publications of each gateway before: its key joins with the first one, and it
    learns its range heads with the second one.
    """
    for turn in range(2):
        for member in fleet.alive:
            publish(member, f"learn-{turn}-{member.id}", 4)
        time.sleep(LEARN_S)
    idle = delays_of_emergencies(fleet, seconds, "idle", 0.0)
    # A message needs one copy for each gateway, distributed over all their links.
    per_s = 0.7 * LOAD_RATE / COPY_BYTES - 1.0
    loaded = delays_of_emergencies(fleet, seconds, "loaded", per_s)
    return idle[int(0.99 * len(idle))], loaded[int(0.99 * len(loaded))], per_s


def at_onset(fleet: Fleet, valleys: int) -> list[float]:
    """Return the delays (ms) of an emergency at the start of an outage.

    Every gateway publishes in all valleys at once, so that all their keys join.
    """
    time.sleep(SETTLE_S)
    topics = [f"/3/1/2/{n // 4 % 4}/{n % 4}/0/0/0/0/0/0/0/1" for n in range(valleys)]
    for number, topic in enumerate(topics):
        for member in fleet.alive:
            member.send_command("publish", f"w{number}-{member.id}", 4, topic)
    time.sleep(1.0)
    sent_s = time.monotonic()
    fleet.alive[0].send_command("publish", "alarm", 5, topics[0])
    wait_until(lambda: all(m.received.get("alarm") for m in fleet.alive), TIMEOUT_S)
    return sorted(1000 * (m.received["alarm"][0] - sent_s) for m in fleet.alive[1:])


SETTLE_S = 25.0
"""Time for the upper levels of the home keys, and to repay what the joins cost."""

LEARN_S = 15.0
COPY_BYTES = PAYLOAD_BYTES + 450.0
"""Bytes of a copy, its receipt and its report on a link."""


def main() -> None:
    """Run both scenarios and print the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gateways", type=int, default=32)
    parser.add_argument("--brokers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--valleys", type=int)
    options = parser.parse_args()
    if options.valleys:
        more = ["--rate", str(LOAD_RATE)]
        with (
            tempfile.TemporaryDirectory() as folder,
            Fleet(options.gateways, options.brokers, Path(folder), *more) as fleet,
        ):
            gather(fleet)
            delays_ms = at_onset(fleet, options.valleys)
            print(f"emergency at the start of an outage: {delays_ms[0]:.0f} to "
                  f"{delays_ms[-1]:.0f} ms")  # fmt: skip
        return
    with tempfile.TemporaryDirectory() as folder:
        with Fleet(options.gateways, options.brokers, Path(folder)) as fleet:
            print(
                f"{options.gateways} gateways in one ring after {gather(fleet):.0f} s"
            )
            print(kill_in_the_middle(fleet, options.seconds), flush=True)
        more = ["--rate", str(LOAD_RATE), "--payload", str(PAYLOAD_BYTES)]
        with Fleet(options.gateways, options.brokers, Path(folder), *more) as fleet:
            gather(fleet)
            idle_ms, loaded_ms, per_s = under_load(fleet, options.seconds)
            print(f"p99 of priority 5: idle {idle_ms:.0f} ms, with {per_s:.1f} routine "
                  f"messages a second {loaded_ms:.0f} ms")  # fmt: skip


if __name__ == "__main__":
    main()
