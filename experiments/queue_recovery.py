"""``python -m experiments.queue_recovery``: recovery of damaged queue files.

Compares our reader with SQLite's tools: ``.recover`` and ``.dump`` of the sqlite3
command (Debian's package ``sqlite3``), ``VACUUM INTO``, and the rows that sqlite-utils
reads. Each arm gets a copy of the same damaged file in its own process. A message is
saved if it equals what was put, was not delivered yet, and matches its checksum; the
checksum is applied to every arm alike.

The first table shows the share of messages that each arm saved, with that of priority 5
where it differs. The second one shows totals by arm:

``nothing``
    Files of which no message was saved.
``refused``
    Rows returned that do not match their checksum.
``wrong``
    Rows that differ from what was put although their checksum matches.
``twice``
    Further rows of a message after its first.
``delivered``
    Messages returned that had been delivered before; their receiver drops them by id.
``values``, ``wrong values``
    Share of the stored values and taken ids that were returned, and the number of
    wrong ones returned. Neither has a checksum.
``CPU s``, ``most s``, ``most MB``
    CPU time (median, maximum) and the memory that an arm needs in addition to Python.
"""

import logging
import multiprocessing
import os
import random
import re
import shutil
import statistics
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from experiments.bench.recovery_arms import (
    ARMS,
    Body,
    Found,
    fill,
    open_queue,
    read_all,
    seeded_ids,
    version,
)
from experiments.bench.recovery_damage import DAMAGES, Damage, Files, Images
from experiments.bench.table import table, write

TOP = 5
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Truth:
    """Content of a queue.

    Attributes:
        live: Messages by id.
        delivered: Messages that had left the queue.
        stored: Stored values and taken ids.
        former: Earlier values.
    """

    live: dict[tuple[Any, ...], Body]
    delivered: set[Body]
    stored: set[tuple[Any, ...]]
    former: set[tuple[Any, ...]]

    @property
    def urgent(self) -> int:
        """Number of messages with the highest priority."""
        return sum(body[0] == TOP for body in self.live.values())


@dataclass(frozen=True)
class Outcome:
    """Result of one arm with one damaged file; see the module for the fields."""

    arm: str
    damage: str
    size: int
    seed: int
    saved: float
    saved_urgent: float
    refused: int
    wrong: int
    twice: int
    delivered: int
    values: float
    wrong_values: int
    seconds: float
    memory_bytes: int
    error: str


def undamaged(images: Images, _chance: random.Random) -> Files:
    """File and log after a power cut, without further damage."""
    return images.crash


CASES: dict[str, Damage] = {"none": undamaged, **DAMAGES}


def build(size: int, seed: int, folder: Path) -> tuple[Images, Truth]:
    """Fill a queue in two runs of a node; a quarter of the messages is delivered."""
    chance = random.Random(seed)  # noqa: S311 - chance, no secrets
    path = folder / "queue.db"
    puts = size * 3 // 2
    first = open_queue(path)
    delivered = fill(first, puts * 2 // 3, chance)
    first.close()
    older, former = Files(path.read_bytes()), read_all(path).values
    second = open_queue(path)
    delivered += fill(second, puts - puts * 2 // 3, chance)
    crash = Files(path.read_bytes(), Path(f"{path}-wal").read_bytes())
    second.close()
    found = read_all(path)
    live = {row.body[2:5]: row.body for row in found.rows if row.body}
    stored = found.values | found.taken
    images = Images(older, crash, Files(path.read_bytes()), path)
    return images, Truth(live, set(delivered), stored, former)


def compare(found: Found, truth: Truth) -> dict[str, Any]:
    """Compare the returned rows with the content of the queue."""
    seen: set[Body] = set()
    counts = dict.fromkeys(("refused", "wrong", "twice", "delivered"), 0)
    for body, is_sound in found.rows:
        if not is_sound or body is None:
            counts["refused"] += 1
        elif body in seen:
            counts["twice"] += 1
        elif truth.live.get(body[2:5]) == body:
            seen.add(body)
        else:
            counts["delivered" if body in truth.delivered else "wrong"] += 1
    urgent = sum(body[0] == TOP for body in seen)
    stored = found.values | found.taken
    return {
        **counts,
        "saved": len(seen) / len(truth.live),
        "saved_urgent": urgent / (truth.urgent or 1),
        "values": len(stored & truth.stored) / len(truth.stored),
        "wrong_values": len(stored - truth.stored - truth.former),
    }


def run_apart(arm: str, path: Path, folder: Path, truth: Truth) -> dict[str, Any]:
    """Run an arm in its own process."""
    receiver, sender = FORK.Pipe(duplex=False)

    def run() -> None:
        logging.disable()  # each arm reports the same damage
        before = _peak_bytes(reset=True)
        start_s = _cpu_s()
        found = ARMS[arm](path, folder)
        seconds = _cpu_s() - start_s
        memory = _peak_bytes() - before + found.rss_bytes
        sender.send({
            **compare(found, truth),
            "seconds": seconds, "memory_bytes": memory, "error": found.error,
        })  # fmt: skip

    process = FORK.Process(target=run)
    process.start()
    sender.close()
    result: dict[str, Any] = receiver.recv()
    process.join()
    return result


def _cpu_s() -> float:
    """Return the CPU time of this process and its ended children, in seconds."""
    return sum(os.times()[:4])


def _peak_bytes(*, reset: bool = False) -> int:
    """Return the maximum memory of this process since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(peak[1]) * 1024 if peak else 0


def measure(size: int, seed: int, arms: Iterable[str]) -> Iterator[Outcome]:
    """Apply every damage to one queue, and run every arm on the result."""
    home = Path(tempfile.mkdtemp(prefix="queue-recovery-"))
    with seeded_ids(random.Random(seed)):  # noqa: S311 - chance, no secrets
        images, truth = build(size, seed, home)
    for name, damage in CASES.items():
        chance = random.Random(f"{seed} {name}")  # noqa: S311
        files = damage(images, chance)
        for arm in arms:
            folder = home / "arm"
            folder.mkdir()
            path = folder / "damaged.db"
            files.write(path)
            result = run_apart(arm, path, folder, truth)
            yield Outcome(arm=arm, damage=name, size=size, seed=seed, **result)
            shutil.rmtree(folder)
    shutil.rmtree(home)


def by_damage(outcomes: list[Outcome], arms: list[str]) -> str:
    """Format the mean share saved in percent, by damage and arm."""
    rows: list[list[object]] = []
    for size, name in dict.fromkeys((o.size, o.damage) for o in outcomes):
        group = [o for o in outcomes if (o.size, o.damage) == (size, name)]
        shares = [_share([o for o in group if o.arm == arm]) for arm in arms]
        rows.append([f"{size} {name}", *shares])
    return table(("saved in % (of priority 5)", *arms), rows)


def _share(group: list[Outcome]) -> str:
    whole = statistics.mean(100 * o.saved for o in group)
    urgent = statistics.mean(100 * o.saved_urgent for o in group)
    same = abs(whole - urgent) < 0.05  # noqa: PLR2004 - less than one printed digit
    return f"{whole:.1f}" if same else f"{whole:.1f} ({urgent:.1f})"


def by_arm(outcomes: list[Outcome], arms: list[str]) -> str:
    """Format the totals, by arm and size."""
    rows: list[list[object]] = []
    for size in dict.fromkeys(o.size for o in outcomes):
        for arm in arms:
            group = [o for o in outcomes if (o.arm, o.size) == (arm, size)]
            damaged = [o for o in group if o.damage != "none"]
            rows.append([
                f"{size} {arm}",
                f"{statistics.mean(100 * o.saved for o in damaged):.2f}",
                f"{statistics.mean(100 * o.saved_urgent for o in damaged):.2f}",
                f"{min(100 * o.saved for o in damaged):.1f}",
                sum(not o.saved for o in group),
                sum(o.refused for o in group),
                sum(o.wrong for o in group),
                sum(o.twice for o in group),
                sum(o.delivered for o in group),
                f"{statistics.mean(100 * o.values for o in damaged):.1f}",
                sum(o.wrong_values for o in group),
                statistics.median(o.seconds for o in group),
                max(o.seconds for o in group),
                max(o.memory_bytes for o in group) / 1e6,
            ])  # fmt: skip
    head = (
        "arm", "saved %", "of P5 %", "least %", "nothing", "refused", "wrong",
        "twice", "delivered", "values %", "wrong values", "CPU s", "most s", "most MB",
    )  # fmt: skip
    return table(head, rows)


@click.command()
@click.option("--sizes", default="200,20000", help="Messages in the queue.")
@click.option("--seeds", default="10,1", help="How many seeds, for each size.")
@click.option("--arms", default=",".join(ARMS), help="Methods of reading the files.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
def main(sizes: str, seeds: str, arms: str, out: Path) -> None:
    """Damage queue files, and compare the messages that each method recovers."""
    names = arms.split(",")
    outcomes: list[Outcome] = []
    for size, count in zip(sizes.split(","), seeds.split(","), strict=True):
        for seed in range(int(count)):
            print(f"  {size} messages, seed {seed} ...", flush=True)
            outcomes += measure(int(size), seed, names)
    print(
        f"\n{version()}\n\n{by_damage(outcomes, names)}\n\n{by_arm(outcomes, names)}\n"
    )
    result = {
        "sqlite3": version(),
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }
    print(f"  {write(out, 'queue_recovery', result)}")


if __name__ == "__main__":
    main()
