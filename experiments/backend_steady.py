"""``python -m experiments.backend_steady``: scoring passes after hours of history.

Nodes, one in each cell, have sent a pack of five readings each for some hours; these
hours are decoded, written and scored by the real pipeline. Then it runs the passes of
the next steps, one pass after each pack, in ``local[2]``. CPU time is split into the
driver (this process), Spark's JVM and the Python workers; memory is the largest
resident set of each kind of process. CPU time depends little on other programs on the
machine, wall time does. With two numbers of nodes, the cost of a pass is given as a
fixed part and a part for each cell, and extrapolated to ``--extrapolate`` cells: what
grows faster than the network is not in it, so measure a large one as well.
``--restarts`` adds first passes after a start, with the hot states of the job before
and without them in turn.

The western half of the cells has rain, of ``--rain`` mm/h; a tilt meter has noise and a
daily wave.
"""

import cProfile
import math
import os
import pstats
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass
from itertools import count
from pathlib import Path
from statistics import mean
from typing import Any, Final

import click
import pyarrow as pa
from pyspark.sql import SparkSession

from backend_spark.config import BackendSettings, read_settings
from backend_spark.streaming import job
from backend_spark.streaming.pipeline import ScoringPipeline
from backend_spark.streaming.session import open_session
from backend_spark.tables.delta_writer import create_tables
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import LOG, SPARK_TABLES
from experiments.bench.resource_usage import descendants
from experiments.bench.table import table, write
from spatial_mqtt.cells import Cell
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import cell_topic

END_S: Final = 1_782_831_600
"""End of the history: 15:00 UTC, so that the last midnight is 15 hours before."""

CALM_S, STORM_S = 600, 60
TIP_MM: Final = 0.5
PACKS_AT_ONCE: Final = 50_000
MIN_COLUMNS: Final = 100
TICK_S: Final = os.sysconf("SC_CLK_TCK")
WATCH_S: Final = 5.0


@dataclass(frozen=True)
class PassCost:
    """Cost of one pass.

    Attributes:
        cells: Scored cells.
        wall_s: Wall time.
        driver_s: CPU time of the driver.
        jvm_s: CPU time of the JVM.
        workers_s: CPU time of the Python workers.
        rows: Rows of `levels` after the pass.
    """

    cells: int
    wall_s: float
    driver_s: float
    jvm_s: float
    workers_s: float
    rows: int

    @property
    def cpu_s(self) -> float:
        """CPU time of all processes."""
        return self.driver_s + self.jvm_s + self.workers_s


@dataclass(frozen=True)
class Usage:
    """CPU time (s) and largest resident set (MiB) of the driver, JVM and workers."""

    driver: tuple[float, int]
    jvm: tuple[float, int]
    workers: tuple[float, int]

    @classmethod
    def now(cls) -> "Usage":
        """Of this process and its descendants; of the workers the largest one."""
        jvm, workers = (0.0, 0), (0.0, 0)
        for pid in descendants(os.getpid()):
            cpu_s, mib, name = _process(pid)
            if name == "java":
                jvm = jvm[0] + cpu_s, max(jvm[1], mib)
            elif name.startswith("python"):
                workers = workers[0] + cpu_s, max(workers[1], mib)
        return cls((time.process_time(), _process(os.getpid())[1]), jvm, workers)


@contextmanager
def watched_peaks() -> Iterator[dict[str, int]]:
    """Largest resident sets (MiB), also of workers that end: Spark ends idle ones."""
    peaks = {"driver": 0, "jvm": 0, "worker": 0}
    is_over = threading.Event()

    def watch() -> None:
        while True:
            usage = Usage.now()
            for name, found in zip(peaks, astuple(usage), strict=True):
                peaks[name] = max(peaks[name], found[1])
            if is_over.wait(WATCH_S):
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peaks
    finally:
        is_over.set()
        watcher.join()


def _process(pid: int) -> tuple[float, int, str]:
    """CPU time with ended children (not of the JVM), peak MiB and name of a process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0, 0, ""
    name = stat[stat.index("(") + 1 : stat.rindex(")")]
    fields = stat.rpartition(")")[2].split()
    ticks = sum(map(int, fields[11 : 13 if name == "java" else 15]))
    peak = [line.split()[1] for line in status.splitlines() if "VmHWM" in line]
    return ticks / TICK_S, int(peak[0]) // 1024 if peak else 0, name


class Network:
    """Nodes on a grid of cells 2 km apart.

    Args:
        nodes: Number of nodes.
        rain_mm_h: Mean rain of the western half.
    """

    def __init__(self, nodes: int, rain_mm_h: float) -> None:
        self._columns = max(MIN_COLUMNS, math.isqrt(nodes))
        places = ((33.0 + n // self._columns * 0.02, 133.0 + n % self._columns * 0.02)
                  for n in range(nodes))  # fmt: skip
        self._topics = [cell_topic(Cell.at(*place)) for place in places]
        self._random = random.Random(nodes)  # noqa: S311 - repeatable
        self._seq = 0
        self._tips_per_s = rain_mm_h / TIP_MM / 3600
        self._rain_mm = [0.0] * nodes

    def packs(self, at_s: float, every_s: int) -> Iterator[dict[str, Any]]:
        """Rows of the log: a pack of each node, at a time."""
        self._seq += 1
        warm = 15 + 8 * math.sin(2 * math.pi * at_s / 86_400)
        for node, topic in enumerate(self._topics):
            is_wet = 2 * (node % self._columns) < self._columns
            tips, rest = divmod(self._tips_per_s * every_s, 1)
            tips += self._random.random() < rest
            self._rain_mm[node] += TIP_MM * tips * is_wet
            sigma = self._random.gauss
            readings = (
                Reading("rain", "mm", sum=self._rain_mm[node]),
                Reading("soil", "/", round(0.3 + sigma(0, 2e-4), 4)),
                Reading("tilt/x", "deg", round(0.002 * warm + sigma(0, 1e-3), 4)),
                Reading("tilt/y", "deg", round(sigma(0, 1e-3), 4)),
                Reading("wire", None, False),
            )
            id_ = MessageId(f"n{node:05d}", "b", self._seq)
            when_s = at_s + node % 50 / 10
            yield {
                "received_at": round((when_s + 1) * 1e6),
                "topic": topic,
                "payload": encode_cbor(Pack(id_, 1, when_s, readings)),
                "node": id_.node,
                "boot": "b",
                "seq": self._seq,
                "pri": 1,
            }


class SteadyJob:
    """The real pipeline on a folder, with the batches and passes of a test.

    Args:
        session: Spark.
        settings: Settings with the folder.
        network: The nodes.
    """

    def __init__(
        self, session: SparkSession, settings: BackendSettings, network: Network
    ) -> None:
        create_tables(Path(settings.backend.data) / "tables", SPARK_TABLES)
        job.register(session)
        self.pipeline: ScoringPipeline = job.make_pipeline(settings)
        self._session, self._network = session, network
        self._settings, self._batch = settings, 0

    def restart(self, *, is_warm: bool) -> None:
        """Start the job anew, with or without the hot states of the one before."""
        if not is_warm:
            shutil.rmtree(self.pipeline.hot.folder)
        self.pipeline = job.make_pipeline(self._settings)

    def lay_down(self, plan: "Plan") -> PassCost:
        """Write and score the history."""
        storm_s = END_S - round(plan.storm_h * 3600)
        calm = range(storm_s - round(plan.calm_h * 3600), storm_s, CALM_S)
        self.receive(calm, CALM_S)
        self.receive(range(storm_s, END_S, plan.every_s), plan.every_s)
        return self.run_pass()

    def receive(self, times_s: range, every_s: int) -> None:
        """Write the packs of some times, in batches."""
        rows: list[dict[str, Any]] = []
        for at_s in times_s:
            rows += self._network.packs(at_s, every_s)
            if len(rows) >= PACKS_AT_ONCE:
                self._run_batch(rows)
                rows = []
        if rows:
            self._run_batch(rows)

    def _run_batch(self, rows: list[dict[str, Any]]) -> None:
        messages = pa.Table.from_pylist(rows, schema=LOG)
        frame = self._session.createDataFrame(messages)
        self.pipeline.run_batch(frame, self._batch)
        self._batch += 1

    def run_pass(self, profile: cProfile.Profile | None = None) -> PassCost:
        """Run a pass over what was received, and measure it."""
        cells = len(self.pipeline.pending.changes.earliest_us)
        before, began_s = Usage.now(), time.monotonic()
        if profile:
            profile.enable()
        self.pipeline.score(self._session)
        if profile:
            profile.disable()
        wall_s, after = time.monotonic() - began_s, Usage.now()
        return PassCost(
            cells,
            wall_s,
            after.driver[0] - before.driver[0],
            after.jvm[0] - before.jvm[0],
            after.workers[0] - before.workers[0],
            DeltaTables(self.pipeline.tables).dataset("levels").count_rows(),
        )


@dataclass(frozen=True)
class Plan:
    """What is run.

    Attributes:
        calm_h: Hours of history with a pack in ten minutes.
        storm_h: Hours after that with a pack a minute, as in the measured passes.
        warm: Passes that are not counted.
        passes: Passes that are.
        profiles: Folder of profiles of the driver; None without.
        restarts: Starts with hot states, and as many without, after these passes.
        rain_mm_h: Rain of the western half.
    """

    calm_h: float
    storm_h: float
    warm: int
    passes: int
    profiles: Path | None = None
    restarts: int = 0
    rain_mm_h: float = 2.0

    @property
    def every_s(self) -> int:
        """Time between two packs of a node in the measured passes."""
        return STORM_S if self.storm_h else CALM_S


@dataclass(frozen=True)
class Costs:
    """Costs of the passes of one number of nodes.

    Attributes:
        first: The first scoring, of the whole history.
        running: Passes of a running job.
        warm: First passes after a start with hot states.
        cold: First passes after a start without.
    """

    first: PassCost
    running: list[PassCost]
    warm: list[PassCost]
    cold: list[PassCost]


def run(session: SparkSession, nodes: int, plan: Plan) -> Costs:
    """Lay down the history of this number of nodes, and run the passes."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "backend.toml"
        config.write_text(f'[backend]\ndata = "{folder}/data"\n')
        network, every_s = Network(nodes, plan.rain_mm_h), plan.every_s
        steady = SteadyJob(session, read_settings(config), network)
        first = steady.lay_down(plan)
        print(f"  {nodes} nodes, history: {first}; {Usage.now()}", flush=True)
        times_s = count(END_S, every_s)

        def step(profile: cProfile.Profile | None = None) -> PassCost:
            at_s = next(times_s)
            steady.receive(range(at_s, at_s + 1), every_s)
            cost = steady.run_pass(profile)
            print(f"  {cost}; {Usage.now()}", flush=True)
            return cost

        profile = cProfile.Profile() if plan.profiles else None
        for _ in range(plan.warm):
            step()
        costs = Costs(first, [step(profile) for _ in range(plan.passes)], [], [])
        if profile and plan.profiles:
            pstats.Stats(profile).dump_stats(plan.profiles / f"driver-{nodes}.prof")
        for number in range(2 * plan.restarts):
            is_warm = number % 2 == 0
            steady.restart(is_warm=is_warm)
            (costs.warm if is_warm else costs.cold).append(step())
            step()
        return costs


def average(costs: list[PassCost]) -> PassCost:
    """The mean pass."""
    columns = zip(*(asdict(cost).values() for cost in costs), strict=True)
    cells, *seconds, rows = map(mean, columns)
    return PassCost(round(cells), *seconds, round(rows))


def extrapolated(one: PassCost, other: PassCost, cells: int) -> PassCost:
    """Pass of more cells, on the line through two others."""

    def at(name: str) -> float:
        low, high = getattr(one, name), getattr(other, name)
        slope = (high - low) / (other.cells - one.cells)
        return float(low + slope * (cells - one.cells))

    names = ("wall_s", "driver_s", "jvm_s", "workers_s")
    return PassCost(cells, *map(at, names), 0)


HEAD: Final = (
    "passes",
    "cells",
    "wall s",
    "driver s",
    "JVM s",
    "workers s",
    "CPU s",
    "ms a cell",
)


def line(name: str, cost: PassCost) -> list[object]:
    """A row of the table."""
    seconds = (cost.wall_s, cost.driver_s, cost.jvm_s, cost.workers_s, cost.cpu_s)
    return [name, cost.cells, *seconds, 1000 * cost.cpu_s / cost.cells]


@click.command()
@click.option("--nodes", default="200,600", help="Numbers of nodes, with commas.")
@click.option("--calm-hours", type=float, default=26.0)
@click.option("--storm-hours", type=float, default=0.0)
@click.option("--warm", type=int, default=2, help="Passes that are not counted.")
@click.option("--passes", type=int, default=3, help="0: the first scoring only.")
@click.option("--rain", type=float, default=2.0, help="Of the western half, in mm/h.")
@click.option("--extrapolate", type=int, default=20_000)
@click.option("--profiles", type=click.Path(path_type=Path), help="Of the driver.")
@click.option("--restarts", type=int, default=0, help="Starts, warm and cold each.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
def main(  # noqa: PLR0913, PLR0917 - one for each option
    nodes: str, calm_hours: float, storm_hours: float, warm: int, passes: int,
    rain: float, extrapolate: int, profiles: Path | None, restarts: int, out: Path,
) -> None:  # fmt: skip
    """Measure the passes of a running job with hours of history."""
    plan = Plan(calm_hours, storm_hours, warm, passes, profiles, restarts, rain)
    session = open_session("local[2]")
    with watched_peaks() as peaks:
        measured = [run(session, int(each), plan) for each in nodes.split(",")]
    session.stop()
    costs = [average(each.running) for each in measured if each.running]
    rows = [line("first, of all history", each.first) for each in measured]
    rows += [line("running job", cost) for cost in costs]
    if len(costs) > 1:
        more = extrapolated(costs[0], costs[-1], extrapolate)
        rows.append(line("extrapolated", more))
    for each in measured:
        rows += [line("first, warm start", cost) for cost in each.warm]
        rows += [line("first, cold start", cost) for cost in each.cold]
    print("\n" + table(HEAD, rows) + "\n")
    print(f"  largest resident sets, MiB: {peaks}")
    result = {"plan": str(plan), "passes": list(map(asdict, measured)), "peaks": peaks}
    print(f"  {write(out, 'backend_steady', result)}")


if __name__ == "__main__":
    main()
