"""``python -m experiments.capacity_backend``: capacity of one backend machine.

20,000 nodes send a storm (one message per minute each, 333/s) over eight gateways to a
real Mosquitto; `backend-spark ingest`, `alerts` and `score` (Spark, ``local[2]``) run
on the same machine. A message is in bronze, silver and messages at the time of the
Delta commit that contains it; the lag is counted from the time in its pack, which is
the time of sending. Then the rate is raised, each time on a new system, until a target
is missed. Last a flood: all messages at once, without scoring, from the first
publication to the last row of silver.

CPU time is that of each program with its children; wall times depend on other programs
on the machine. Each measurement begins after Spark has run its first batches.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backend_spark.tables.reader import open_tables
from backend_spark.tables.schemas import SPARK_TABLES
from demo.processes import free_port
from experiments.bench.chart import lines
from experiments.bench.gateway import LOW_DELAY, NO_LIMITS
from experiments.bench.resource_usage import Sampler
from experiments.bench.site import Site, interrupt_on_sigterm
from experiments.bench.storm_load import Quantiles
from experiments.bench.table import table, verdict, write

MICRO = 1_000_000

NODES: Final = 20_000
GATEWAYS: Final = 8
STORM_PER_S: Final = NODES / 60
RATES: Final = (1000.0, 2000.0, 3000.0, 4000.0, 5000.0, 7000.0)
FLOOD_PER_S: Final = 50_000.0
MIN_PER_S: Final = 5000.0
CORES: Final = 2
MAX_URGENT_P99_S: Final = 1.0
MAX_SILVER_P99_S: Final = 60.0
MAX_RECEIPT_P99_S: Final = 1.0
MAX_GROWTH_MIB_PER_MIN: Final = 32.0
WARM_S: Final = 20.0
QUIET_S: Final = 60.0
TIMEOUT_S: Final = 900.0
PROGRAMS: Final = ("broker", "ingest", "alerts", "score", "load")
STAGES: Final = ("alerts", "bronze", "silver", "levels")
TIMES: Final = {"bronze": "received_at", "levels": "latest_received"}


def commit_lags_s(table: Path, column: str, from_s: float) -> list[float]:
    """Return the seconds from each row's time to the commit that contains it.

    Args:
        table: Folder of the table.
        column: Column with the row's time.
        from_s: Unix time; earlier rows are ignored.
    """
    lags: list[float] = []
    for commit_s, parts in _commits(table):
        for path in parts:
            if not path.exists():
                continue  # removed by compaction
            at_us = pq.read_table(path, columns=[column])[column].cast(pa.int64())
            at_us = at_us.filter(pc.greater_equal(at_us, round(from_s * MICRO)))
            times_us = [us for us in at_us.to_pylist() if us is not None]
            lags += [commit_s - us / MICRO for us in times_us]
    return lags


def _commits(table: Path) -> Iterator[tuple[float, list[Path]]]:
    """Yield the time of each commit and the files with new rows that it names."""
    for commit in sorted((table / "_delta_log").glob("*.json")):
        actions = map(json.loads, commit.read_text().splitlines())
        adds = [a["add"] for a in actions if "add" in a and a["add"]["dataChange"]]
        yield commit.stat().st_mtime, [table / add["path"] for add in adds]


@dataclass(frozen=True)
class Arm:
    """A rate.

    Attributes:
        name: Name in tables.
        rate: Messages/s.
        seconds: Duration.
        with_gold: Whether cells are scored meanwhile.
        warm_s: Duration of the warm-up of Spark.
    """

    name: str
    rate: float
    seconds: float
    with_gold: bool = True
    warm_s: float = WARM_S


@dataclass(frozen=True)
class Step:
    """Result of one rate; times in seconds.

    Attributes:
        arm: Name of the step.
        rate: Nominal rate, messages/s.
        sent: Number of messages.
        lost: Messages missing in the table messages at the end.
        doubled: Duplicates in that table.
        behind_s: Maximum lag of the gateways behind their rate.
        seconds: From the first message to the last commit of silver.
        receipt: Publication to the ingest's receipt.
        lags: For each table the time to the commit: from sending; for bronze from the
            reception; for levels from the latest reception they are based on.
        cpu_us: CPU time per message of each program.
        mib: Maximum memory of each program.
        growth_mib: Memory growth of each, from the step's second quarter to its last.
        stored_bytes: Bytes per message of the log and of each table.
    """

    arm: str
    rate: float
    sent: int
    lost: int
    doubled: int
    behind_s: float
    seconds: float
    receipt: Quantiles
    lags: Mapping[str, Quantiles]
    cpu_us: Mapping[str, float]
    mib: Mapping[str, float]
    growth_mib: Mapping[str, float]
    stored_bytes: Mapping[str, float]

    def broken(self) -> list[str]:
        """Return the missed targets, the most serious first."""
        checks = {
            "lost": self.lost > 0,
            "doubled": self.doubled > 0,
            "alert p99": (self.lags["alerts"].p99_s or 0.0) > MAX_URGENT_P99_S,
            "receipt p99": (self.receipt.p99_s or 0.0) > MAX_RECEIPT_P99_S,
            "silver p99": (self.lags["silver"].p99_s or 0.0) > MAX_SILVER_P99_S,
        }
        return [name for name, is_broken in checks.items() if is_broken]

    def busiest(self) -> str:
        """Return the program with the highest CPU use, and its cores."""
        name = max(PROGRAMS[:-1], key=self.cores)
        return f"{name} {self.cores(name):.2f}"

    def cores(self, name: str) -> float:
        """Return the number of cores that a program kept busy."""
        return self.cpu_us[name] * self.sent / self.seconds / 1e6

    def per_s_of_cores(self) -> float:
        """Return the messages/s that `CORES` allow, by the CPU time of all programs."""
        return CORES * 1e6 / sum(self.cpu_us.values())


def run(arm: Arm) -> Step:
    """Run one rate on a new system."""
    with Site(None) as site:
        port, data = free_port(), site.folder / "data"
        site.mosquitto("broker", None, port, *NO_LIMITS, *LOW_DELAY)
        _start_backend(site, port, data, with_gold=arm.with_gold)
        # The warm-up excludes Spark's slow first batches.
        warm = STORM_PER_S if arm.with_gold else MIN_PER_S
        site.python(
            "load", None, "experiments.bench.storm_load", "--port", port,
            "--nodes", NODES, "--links", GATEWAYS, "--rates", f"{warm},{arm.rate}",
            "--seconds", f"{arm.warm_s},{arm.seconds}",
            "--go", site.folder / "go", "--out", site.path("load"),
        )  # fmt: skip
        site.wait_for_words("load", "ready", TIMEOUT_S)
        pids = {name: site.pid(name) for name in PROGRAMS}
        with Sampler(pids) as sampler:
            count, ended_s = 0, 0.0
            for number in (1, 2):
                (site.folder / f"go.{number}").touch()
                site.wait_for_words("load", f"step {number} ended", TIMEOUT_S)
                count += site.result("load")[-1]["sent"]
                ended_s = _wait_until_stored(data, count)
        load_step = site.result("load")[-1]
        return _step(arm.name, load_step, (data, count, ended_s), sampler)


def _start_backend(site: Site[None], port: int, data: Path, *, with_gold: bool) -> None:
    config = site.folder / "backend.toml"
    config.write_text(
        f'[backend]\ndata = "{data}"\n[ingest]\nbroker = "mqtt://127.0.0.1:{port}"\n'
        f'[score]\nmaster = "local[{CORES}]"\n'
        + ("" if with_gold else "every_s = 3600\n")
    )
    for name in ("ingest", "alerts", "score"):
        site.python(name, None, "backend_spark", name, "--config", config)
    site.wait_for_words("ingest", "is up", TIMEOUT_S)
    site.wait_for_words("score", "scoring", TIMEOUT_S)


def _wait_until_stored(data: Path, sent: int) -> float:
    """Wait for messages, at most `QUIET_S` without progress; return the last time."""
    known, changed_s = 0, time.monotonic()
    while known < sent and time.monotonic() < changed_s + QUIET_S:
        time.sleep(0.5)
        before, known = known, open_tables(data).dataset("messages").count_rows()
        if known > before:
            changed_s = time.monotonic()
    return changed_s


def _step(
    arm: str, load: dict[str, Any], stored: tuple[Path, int, float], sampler: Sampler
) -> Step:
    data, count, ended_s = stored
    began_s, sent = load["began_s"], load["sent"]
    ids = open_tables(data).messages(["node", "seq"])
    distinct = ids.group_by(["node", "seq"]).aggregate([]).num_rows
    wall_s = time.time() - time.monotonic() + began_s
    lags = {
        name: Quantiles.of(
            commit_lags_s(data / "tables" / name, TIMES.get(name, "at"), wall_s)
        )
        for name in STAGES
    }
    return Step(
        arm, load["rate"], sent, count - distinct, ids.num_rows - distinct,
        load["behind_s"], ended_s - began_s, Quantiles(**load["custody"]), lags,
        {
            name: sampler.used_s(name, began_s, ended_s) / sent * 1e6
            for name in PROGRAMS
        },
        {name: sampler.max_mib(name) for name in PROGRAMS},
        {name: sampler.growth_mib(name, began_s, ended_s) for name in PROGRAMS},
        {name: size / count for name, size in _stored_bytes(data).items()},
    )  # fmt: skip


def _stored_bytes(data: Path) -> dict[str, int]:
    """Return the bytes of the log and of every table, without obsolete files."""
    tables = open_tables(data)
    files = {"log": list((data / "log").glob("*.arrow"))}
    for name in SPARK_TABLES:
        dataset = tables.dataset(name)
        files[name] = [tables.path(name) / Path(file).name for file in dataset.files]
    return {n: sum(f.stat().st_size for f in each) for n, each in files.items()}


def _rows(steps: Sequence[Step]) -> str:
    head = (
        "step", "messages/s", "sent", "lost", "doubled", "behind s", "receipt p99 s",
        *(f"{name} p99 s" for name in STAGES),
        *(f"{name} us, cores" for name in PROGRAMS),
        "two cores/s", "score MiB", "growth MiB", "busiest", "broken",
    )  # fmt: skip
    rows: list[list[object]] = [
        [
            s.arm, f"{s.sent / s.seconds:.0f}", s.sent, s.lost, s.doubled, s.behind_s,
            s.receipt.p99_s, *(s.lags[name].p99_s for name in STAGES),
            *(f"{s.cpu_us[name]:.0f} {s.cores(name):.2f}" for name in PROGRAMS),
            f"{s.per_s_of_cores():.0f}", f"{s.mib['score']:.0f}",
            max(s.growth_mib[name] for name in PROGRAMS[:-1]), s.busiest(),
            ", ".join(s.broken()) or "-",
        ]
        for s in steps
    ]  # fmt: skip
    return table(head, rows)


def _verdicts(steps: Sequence[Step], flood: Step) -> list[str]:
    storm = steps[0]
    minutes = storm.seconds / 60
    growth = max(storm.growth_mib[name] for name in PROGRAMS[:-1]) / minutes
    broken = next((s for s in steps if s.broken()), None)
    conclusion = (
        f"  first to break: {', '.join(broken.broken())} at {broken.rate:.0f} "
        f"messages/s; busiest: {broken.busiest()} cores"
        if broken
        else f"  nothing broke up to {steps[-1].rate:.0f} messages/s"
    )
    wrong = sum(s.lost + s.doubled for s in (*steps, flood))
    return [
        verdict("lost or doubled", wrong, 0),
        verdict("storm: alert p99 s", storm.lags["alerts"].p99_s, MAX_URGENT_P99_S),
        verdict("storm: receipt p99 s", storm.receipt.p99_s, MAX_RECEIPT_P99_S),
        verdict("storm: silver p99 s", storm.lags["silver"].p99_s, MAX_SILVER_P99_S),
        verdict("storm: growth, MiB a minute", growth, MAX_GROWTH_MIB_PER_MIN),
        verdict(
            "flood: messages/s, published to silver",
            flood.sent / flood.seconds, MIN_PER_S, False,
        ),
        verdict(
            "flood: messages/s of two cores, by CPU",
            flood.per_s_of_cores(), MIN_PER_S, False,
        ),
        conclusion,
    ]  # fmt: skip


@click.command()
@click.option("--quick", is_flag=True, help="Seconds of each, one rate.")
@click.option("--storm-s", default=300.0, help="Seconds of the storm.")
@click.option("--step-s", default=60.0, help="Seconds of each rate.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
def main(quick: bool, storm_s: float, step_s: float, out: Path) -> None:
    """Measure the capacity of one backend machine, and its first bottleneck."""
    interrupt_on_sigterm()
    storm_s, step_s, flood_s = (10.0, 5.0, 0.4) if quick else (storm_s, step_s, 6.0)
    print("  the storm ...", flush=True)
    steps = [run(Arm("storm", STORM_PER_S, storm_s))]
    print("  the storm, scoring left out ...", flush=True)
    bare = run(Arm("storm, no gold", STORM_PER_S, storm_s / 5, with_gold=False))
    for rate in RATES[:1] if quick else RATES:
        print(f"  {rate:.0f} messages/s ...", flush=True)
        steps.append(run(Arm(f"{rate:.0f}/s", rate, step_s)))
        if steps[-1].broken():
            break
    print("  flood ...", flush=True)
    flood = run(Arm("flood, no gold", FLOOD_PER_S, flood_s, with_gold=False))
    bars = _verdicts(steps, flood)
    every = [steps[0], bare, *steps[1:], flood]
    result: dict[str, Any] = {
        "nodes": NODES, "steps": [asdict(step) for step in every], "bars": bars,
    }  # fmt: skip
    print(f"\n{_rows(every)}\n", *bars, sep="\n")
    print(f"\n  {write(out, 'capacity_backend', result)}")
    lines(
        out / "capacity_backend.png", "What one backend machine carries",
        [step.rate for step in steps],
        {f"{n} p99": [s.lags[n].p99_s for s in steps] for n in STAGES},
        "messages/s", "s",
    )  # fmt: skip


if __name__ == "__main__":
    main()
