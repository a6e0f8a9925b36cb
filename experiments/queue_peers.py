"""``python -m experiments.queue_peers``: cost of the queue compared with plain sqlite3.

Every arm puts a batch of 20 messages of 200 bytes, takes 20 and acknowledges them, in
its own process on the same real disk. The arms alternate in short rounds, so that other
load on the machine affects all of them; a rate is the median of the rounds. Ratios are
to the bare loop in the same round, and to the bare loop with the same commits ("to
like").

The peers are not in our lock file: ``pip install persist-queue litequeue``.
"""

import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from experiments.bench.chart import bars
from experiments.bench.queue_arms import ARMS, BARE, EACH_PUT, NEXT_PUT
from experiments.bench.site import ROOT
from experiments.bench.table import table, verdict, write

BATCH = 20
PEERS = ("persistqueue", "litequeue")
INSTALL = "pip install persist-queue litequeue"

LARGE_BACKLOG = 100_000
HUGE_BACKLOG = 1_000_000
MIN_RATIO = 0.8
MAX_BYTES_EACH = 6144
MAX_OPEN_S = 1.0
MAX_GROWTH_BYTES = 8_000_000


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement.

    Attributes:
        rounds: Rounds of each arm.
        cycles: Batches per round.
        slow_cycles: Batches per round for arms that commit each message.
        is_deep: Whether peers are opened with the largest backlog too.
    """

    rounds: int
    cycles: int
    slow_cycles: int
    is_deep: bool


QUICK = Plan(rounds=9, cycles=100, slow_cycles=2, is_deep=False)
FULL = Plan(rounds=25, cycles=200, slow_cycles=4, is_deep=True)


@dataclass
class Result:
    """Result of one arm with one backlog.

    Attributes:
        rounds: Messages per second in each round.
        bytes_each: Bytes written to disk per message, in each round.
        rss_bytes: Memory of the process.
        open_s: From opening a filled file to its first message, with a warm page cache.
        cold_open_s: The same with a cold page cache.
    """

    arm: str
    backlog: int
    rounds: list[float] = field(default_factory=list)
    bytes_each: list[float] = field(default_factory=list)
    rss_bytes: int | None = None
    open_s: float | None = None
    cold_open_s: float | None = None


class Child:
    """An arm in its own process."""

    def __init__(self, arm: str, folder: Path, *wrapper: str) -> None:
        # The peers may be installed anywhere on this process's path.
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        self._process = subprocess.Popen(
            [*wrapper, sys.executable, "-m", "experiments.bench.queue_child", arm,
             str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT,
        )  # fmt: skip
        self.opened = self._read_answer()

    def execute(self, *command: object) -> dict[str, Any]:
        """Send a command; return its result."""
        assert self._process.stdin  # noqa: S101 - it is a pipe
        print(*command, file=self._process.stdin, flush=True)
        return self._read_answer()

    def close(self) -> None:
        """Close the queue and wait for the end of the process."""
        assert self._process.stdin  # noqa: S101
        self._process.stdin.close()
        self._process.wait()

    def _read_answer(self) -> dict[str, Any]:
        assert self._process.stdout  # noqa: S101
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def cycles_of(arm: str, plan: Plan) -> int:
    """Return the batches per round of an arm."""
    return plan.slow_cycles if ARMS[arm].is_peer else plan.cycles


def race(arms: list[str], backlog: int, plan: Plan, disk: Path) -> list[Result]:
    """Run the arms in alternating rounds, each with a backlog."""
    results = [Result(arm, backlog) for arm in arms]
    with ExitStack() as stack:
        children = [stack.enter_context(_filled(a, backlog, disk)) for a in arms]
        pairs = list(zip(children, results, strict=True))
        for child, result in pairs:  # to warm up
            child.execute("run", cycles_of(result.arm, plan), BATCH)
        for child, result in pairs * plan.rounds:
            answer = child.execute("run", cycles_of(result.arm, plan), BATCH)
            result.rounds.append(answer["per_s"])
            result.bytes_each.append(answer["bytes_each"])
            result.rss_bytes = answer["rss_bytes"]
    return results


@contextmanager
def _filled(arm: str, backlog: int, disk: Path) -> Iterator[Child]:
    with _folder(disk) as folder:
        child = Child(arm, folder)
        if backlog:
            child.execute("fill", backlog)
        yield child
        child.close()


@contextmanager
def _folder(disk: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="queue-", dir=disk))
    yield folder
    shutil.rmtree(folder)


def open_again(arm: str, backlog: int, disk: Path) -> Result:
    """Fill a file, close it, and open it with a warm and a cold page cache."""
    result = Result(arm, backlog)
    with _folder(disk) as folder:
        child = Child(arm, folder)
        child.execute("fill", backlog)
        child.close()
        for _ in range(2):
            child = Child(arm, folder)
            result.open_s = child.opened["open_s"]
            result.rss_bytes = child.execute("run", 1, BATCH)["rss_bytes"]
            child.close()
        _drop_from_cache(folder)
        child = Child(arm, folder)
        result.cold_open_s = child.opened["open_s"]
        child.close()
    return result


def _drop_from_cache(folder: Path) -> None:
    """Remove the files from the page cache."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def syncs_each(arm: str, disk: Path) -> float | None:
    """Return the calls of fsync and fdatasync per message, or None without strace."""
    if shutil.which("strace") is None:
        return None
    cycles = 50
    with _folder(disk) as folder:
        log = folder / "strace"
        child = Child(
            arm, folder, "strace", "-f", "-e", "trace=fsync,fdatasync", "-o", str(log)
        )
        before = len(log.read_text().splitlines())
        child.execute("run", cycles, BATCH)
        after = len(log.read_text().splitlines())
        child.close()
    return (after - before) / (cycles * BATCH)


def available() -> list[str]:
    """Return the arms that can run here; print how to install the others."""
    missing = [name for name in PEERS if importlib.util.find_spec(name) is None]
    if missing:
        print(f"  without {', '.join(missing)}: {INSTALL}", flush=True)
    names = {"persist-queue": "persistqueue", "litequeue": "litequeue"}
    return [
        arm
        for arm in ARMS
        if not any(arm.startswith(n) and names[n] in missing for n in names)
    ]


def measure(plan: Plan, disk: Path) -> tuple[list[Result], dict[str, float | None]]:
    """Run all measurements."""
    arms = available()
    results: list[Result] = []
    for backlog in (0, LARGE_BACKLOG):
        print(f"  {len(arms)} queues with a backlog of {backlog} ...", flush=True)
        results += race(arms, backlog, plan, disk)
    for arm in arms:
        if arm in {BARE, EACH_PUT} or (plan.is_deep and ARMS[arm].is_peer):
            print(f"  {arm} opens {HUGE_BACKLOG} messages ...", flush=True)
            results.append(open_again(arm, HUGE_BACKLOG, disk))
    return results, {arm: syncs_each(arm, disk) for arm in arms}


def ratio(result: Result, bare: Result | None) -> float | None:
    """Return the median of the ratios of the same round."""
    if bare is None:
        return None
    pairs = zip(result.rounds, bare.rounds, strict=True)
    ratios = [ours / theirs for ours, theirs in pairs]
    return statistics.median(ratios) if ratios else None


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def _rows(
    results: list[Result], syncs: dict[str, float | None]
) -> Iterator[list[object]]:
    raced = {(r.arm, r.backlog): r for r in results if r.rounds}
    for each in results:
        like = ARMS[each.arm].like
        rate = _median(each.rounds)
        size = _median(each.bytes_each)
        yield [
            f"{each.arm}, {each.backlog}",
            None if rate is None else round(rate),
            ratio(each, raced.get((BARE, each.backlog))),
            ratio(each, raced.get((like or "", each.backlog))),
            None if size is None else round(size),
            syncs[each.arm],
            None if each.rss_bytes is None else each.rss_bytes / 1e6,
            each.open_s,
            each.cold_open_s,
        ]


def check_targets(results: list[Result]) -> list[str]:
    """Compare the results with the targets."""
    found = {(r.arm, r.backlog): r for r in results}
    verdicts = []
    # The target applies to the durability that a gateway uses (decision 11).
    for backlog in (0, LARGE_BACKLOG):
        share = ratio(found[NEXT_PUT, backlog], found[BARE, backlog])
        label = f"{NEXT_PUT} to bare, {backlog}"
        verdicts.append(verdict(label, share, MIN_RATIO, at_most=False))
        other = ratio(found[EACH_PUT, backlog], found[BARE, backlog])
        verdicts.append(f"  note  {EACH_PUT} to bare, {backlog}: {other or 0:.2f}")
    for arm in (EACH_PUT, NEXT_PUT):
        many = _median(found[arm, LARGE_BACKLOG].bytes_each)
        verdicts.append(
            verdict(f"{arm} bytes each, {LARGE_BACKLOG}", many, MAX_BYTES_EACH)
        )
    deep = found[EACH_PUT, HUGE_BACKLOG]
    verdicts.append(verdict(f"open {HUGE_BACKLOG}, s", deep.open_s, MAX_OPEN_S))
    memory = [
        found[EACH_PUT, n].rss_bytes or 0 for n in (0, LARGE_BACKLOG, HUGE_BACKLOG)
    ]
    grown = max(memory) - memory[0]
    verdicts.append(verdict("memory grows by, bytes", grown, MAX_GROWTH_BYTES))
    return verdicts


def _chart(out: Path, results: list[Result]) -> Path | None:
    bare = {r.backlog: r for r in results if r.arm == BARE and r.rounds}
    raced = [r for r in results if r.rounds]
    labels = list(dict.fromkeys(r.arm for r in raced))
    series = {
        f"backlog {n}": [ratio(r, bare[n]) for r in raced if r.backlog == n]
        for n in (0, LARGE_BACKLOG)
    }
    path = out / "queue_peers.png"
    title = "Put, take and acknowledge: messages a second to bare sqlite3"
    return path if bars(path, title, labels, series, "ratio") else None


@click.command()
@click.option("--quick", is_flag=True, help="Fewer rounds; peers not at a million.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
def main(quick: bool, out: Path) -> None:
    """Compare the queue with a bare sqlite3 loop and with peers."""
    out.mkdir(parents=True, exist_ok=True)
    # Beside the results, on a real disk; the temporary folder may be in memory.
    results, syncs = measure(QUICK if quick else FULL, out)
    head = ("queue, backlog", "per s", "to bare", "to like", "bytes each", "fsyncs",
            "RSS MB", "open s", "cold s")  # fmt: skip
    print(f"\n{table(head, list(_rows(results, syncs)))}\n")
    for arm in syncs:
        print(f"  {arm}: {ARMS[arm].promise}")
    verdicts = check_targets(results)
    result = {
        "results": [vars(each) for each in results],
        "fsyncs": syncs,
        "bars": verdicts,
    }
    paths = [write(out, "queue_peers", result), _chart(out, results)]
    print("", *verdicts, "", *(f"  {path}" for path in paths if path), sep="\n")


if __name__ == "__main__":
    main()
