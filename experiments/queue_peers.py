"""``python -m experiments.queue_peers``: what the queue costs beside sqlite3 itself.

Every arm puts a batch of 20 messages of 200 bytes, takes 20 and lets them go, in a
process of its own on the same real disk. The arms take turns in short rounds, so
that what else the machine does meets them all; a rate is the median of the rounds,
and its ratios are to the bare loop in the same round, and to the bare loop that makes
the same commits ("to like").

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

MANY = 100_000
MOST = 1_000_000
LEAST_RATIO = 0.8
MOST_BYTES_EACH = 6144
MOST_OPEN_S = 1.0
MOST_GROWTH_BYTES = 8_000_000


@dataclass(frozen=True)
class Plan:
    """How long it is measured.

    Attributes:
        rounds: Turns of each arm.
        cycles: Batches in a turn.
        slow_cycles: The same for arms that commit each message.
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
    """What one arm showed with one backlog.

    Attributes:
        rounds: Messages a second in each round.
        bytes_each: Given to the disk for a message, in each round.
        rss_bytes: Memory of the process.
        open_s: From opening a filled file to its first message, pages in memory.
        cold_open_s: The same with the file not in memory.
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

    def __init__(self, arm: str, folder: Path, *before: str) -> None:
        # The installed peers may be anywhere on our path.
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        self._process = subprocess.Popen(
            [*before, sys.executable, "-m", "experiments.bench.queue_child", arm,
             str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT,
        )  # fmt: skip
        self.opened = self._answer()

    def ask(self, *words: object) -> dict[str, Any]:
        """Let it do something; what it says."""
        assert self._process.stdin  # noqa: S101 - it is a pipe
        print(*words, file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        """Let it write everything and end."""
        assert self._process.stdin  # noqa: S101
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout  # noqa: S101
        told: dict[str, Any] = json.loads(self._process.stdout.readline())
        return told


def cycles_of(arm: str, plan: Plan) -> int:
    """Batches in a turn of an arm."""
    return plan.slow_cycles if ARMS[arm].is_peer else plan.cycles


def race(arms: list[str], backlog: int, plan: Plan, disk: Path) -> list[Result]:
    """Let the arms take turns behind a backlog."""
    results = [Result(arm, backlog) for arm in arms]
    with ExitStack() as stack:
        children = [stack.enter_context(_filled(a, backlog, disk)) for a in arms]
        pairs = list(zip(children, results, strict=True))
        for child, result in pairs:  # to warm up
            child.ask("run", cycles_of(result.arm, plan), BATCH)
        for child, result in pairs * plan.rounds:
            told = child.ask("run", cycles_of(result.arm, plan), BATCH)
            result.rounds.append(told["per_s"])
            result.bytes_each.append(told["bytes_each"])
            result.rss_bytes = told["rss_bytes"]
    return results


@contextmanager
def _filled(arm: str, backlog: int, disk: Path) -> Iterator[Child]:
    with _folder(disk) as folder:
        child = Child(arm, folder)
        if backlog:
            child.ask("fill", backlog)
        yield child
        child.close()


@contextmanager
def _folder(disk: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="queue-", dir=disk))
    yield folder
    shutil.rmtree(folder)


def open_again(arm: str, backlog: int, disk: Path) -> Result:
    """Fill a file, close it, and open it anew, from memory and from the disk."""
    result = Result(arm, backlog)
    with _folder(disk) as folder:
        child = Child(arm, folder)
        child.ask("fill", backlog)
        child.close()
        for _ in range(2):
            child = Child(arm, folder)
            result.open_s = child.opened["open_s"]
            result.rss_bytes = child.ask("run", 1, BATCH)["rss_bytes"]
            child.close()
        _forget(folder)
        child = Child(arm, folder)
        result.cold_open_s = child.opened["open_s"]
        child.close()
    return result


def _forget(folder: Path) -> None:
    """Let the kernel drop the files from its memory."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def syncs_each(arm: str, disk: Path) -> float | None:
    """Calls of fsync and fdatasync for a message, or None without strace."""
    if shutil.which("strace") is None:
        return None
    cycles = 50
    with _folder(disk) as folder:
        log = folder / "strace"
        child = Child(
            arm, folder, "strace", "-f", "-e", "trace=fsync,fdatasync", "-o", str(log)
        )
        before = len(log.read_text().splitlines())
        child.ask("run", cycles, BATCH)
        after = len(log.read_text().splitlines())
        child.close()
    return (after - before) / (cycles * BATCH)


def available() -> list[str]:
    """The arms that can run here; says how to get the others."""
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
    """Everything, in order."""
    arms = available()
    results: list[Result] = []
    for backlog in (0, MANY):
        print(f"  {len(arms)} queues with a backlog of {backlog} ...", flush=True)
        results += race(arms, backlog, plan, disk)
    for arm in arms:
        if arm in {BARE, EACH_PUT} or (plan.is_deep and ARMS[arm].is_peer):
            print(f"  {arm} opens {MOST} messages ...", flush=True)
            results.append(open_again(arm, MOST, disk))
    return results, {arm: syncs_each(arm, disk) for arm in arms}


def ratio(result: Result, bare: Result | None) -> float | None:
    """Median of the ratios in the same round."""
    if bare is None:
        return None
    pairs = zip(result.rounds, bare.rounds, strict=True)
    ratios = [ours / theirs for ours, theirs in pairs]
    return statistics.median(ratios) if ratios else None


def _middle(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def _rows(
    results: list[Result], syncs: dict[str, float | None]
) -> Iterator[list[object]]:
    raced = {(r.arm, r.backlog): r for r in results if r.rounds}
    for each in results:
        like = ARMS[each.arm].like
        rate = _middle(each.rounds)
        size = _middle(each.bytes_each)
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


def judge(results: list[Result]) -> list[str]:
    """The bars, and whether they are met."""
    found = {(r.arm, r.backlog): r for r in results}
    said = []
    # The bar is for the way that a gateway works (decision 11).
    for backlog in (0, MANY):
        share = ratio(found[NEXT_PUT, backlog], found[BARE, backlog])
        label = f"{NEXT_PUT} to bare, {backlog}"
        said.append(verdict(label, share, LEAST_RATIO, at_most=False))
        other = ratio(found[EACH_PUT, backlog], found[BARE, backlog])
        said.append(f"  note  {EACH_PUT} to bare, {backlog}: {other or 0:.2f}")
    for arm in (EACH_PUT, NEXT_PUT):
        many = _middle(found[arm, MANY].bytes_each)
        said.append(verdict(f"{arm} bytes each, {MANY}", many, MOST_BYTES_EACH))
    deep = found[EACH_PUT, MOST]
    said.append(verdict(f"open {MOST}, s", deep.open_s, MOST_OPEN_S))
    memory = [found[EACH_PUT, n].rss_bytes or 0 for n in (0, MANY, MOST)]
    grown = max(memory) - memory[0]
    said.append(verdict("memory grows by, bytes", grown, MOST_GROWTH_BYTES))
    return said


def _chart(out: Path, results: list[Result]) -> Path | None:
    bare = {r.backlog: r for r in results if r.arm == BARE and r.rounds}
    raced = [r for r in results if r.rounds]
    labels = list(dict.fromkeys(r.arm for r in raced))
    series = {
        f"backlog {n}": [ratio(r, bare[n]) for r in raced if r.backlog == n]
        for n in (0, MANY)
    }
    path = out / "queue_peers.png"
    title = "Put, take and acknowledge: messages a second to bare sqlite3"
    return path if bars(path, title, labels, series, "ratio") else None


@click.command()
@click.option("--quick", is_flag=True, help="Fewer rounds; peers not at a million.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
def main(quick: bool, out: Path) -> None:
    """Measure the queue beside a bare sqlite3 loop and its peers."""
    out.mkdir(parents=True, exist_ok=True)
    # Beside the results: that is a real disk, as a temporary folder may not be.
    results, syncs = measure(QUICK if quick else FULL, out)
    head = ("queue, backlog", "per s", "to bare", "to like", "bytes each", "fsyncs",
            "RSS MB", "open s", "cold s")  # fmt: skip
    print(f"\n{table(head, list(_rows(results, syncs)))}\n")
    for arm in syncs:
        print(f"  {arm}: {ARMS[arm].promise}")
    said = judge(results)
    told = {"results": [vars(each) for each in results], "fsyncs": syncs, "bars": said}
    paths = [write(out, "queue_peers", told), _chart(out, results)]
    print("", *said, "", *(f"  {path}" for path in paths if path), sep="\n")


if __name__ == "__main__":
    main()
