"""``python -m experiments.alert_latency``: latency from publication to the alert row.

200 publishers send 1,000 packs per second to a real Mosquitto; `backend-spark ingest`,
`alerts` and `score` (Spark, ``local[2]``) run on the same machine. Each pack contains
its publication time; a row is visible at the time of the Delta commit that contains it
(modification time of the commit file). The table is compacted every 50 commits; the
first commit after a compaction is reported separately. For comparison: the same
messages in the table bronze, as a path through the Spark job would give, and alerts
without Spark.
"""

import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click
import pyarrow.parquet as pq

from demo.processes import free_port
from experiments.bench.chart import bars
from experiments.bench.site import Site, interrupt_on_sigterm
from experiments.bench.stamped_messages import read_stamp
from experiments.bench.table import table, verdict, write
from spatial_mqtt.cells import Cell
from spatial_mqtt.topics import cell_topic

PUBLISHERS: Final = 200
RATE: Final = 5.0
SIZE_BYTES: Final = 143
BAR_S: Final = 1.0
WARM_UP_S: Final = 20
ROWS_TIMEOUT_S: Final = 180.0
SPARK_TIMEOUT_S: Final = 300.0


@dataclass(frozen=True)
class Case:
    """A load.

    Attributes:
        name: Name in tables.
        urgent: Share of publishers with packs of priority 4 or 5.
        has_score: Whether the Spark job runs at the same time.
    """

    name: str
    urgent: float
    has_score: bool = True


CASES = (
    Case("1 in 10 urgent", 0.1),
    Case("all urgent", 1.0),
    Case("1 in 10 urgent, no Spark", 0.1, has_score=False),
)


@dataclass(frozen=True)
class Latency:
    """Latency from publication to row, in seconds.

    Attributes:
        compactions: Number of compactions of the table meanwhile.
        behind_s: Maximum latency in the first commit after a compaction.
    """

    case: str
    path: str
    n: int
    lost: int
    doubled: int
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    max_s: float | None
    compactions: int
    behind_s: float | None


def run(case: Case, seconds: int) -> list[Latency]:
    """Run one case; return a result for each table."""
    with Site(None) as site:
        port = free_port()
        data = site.folder / "data"
        site.mosquitto("broker", None, port, "max_queued_messages 0")
        config = site.folder / "backend.toml"
        config.write_text(
            f'[backend]\ndata = "{data}"\n[ingest]\nbroker = "mqtt://127.0.0.1:{port}"\n'
            '[score]\nmaster = "local[2]"\n'
        )
        names = ("ingest", "alerts", *(["score"] if case.has_score else []))
        for name in names:
            site.python(name, None, "backend_spark", name, "--config", config)
        site.wait_for_words("ingest", "is up")
        paths = ("alerts", *(["bronze"] if case.has_score else []))
        if case.has_score:
            site.wait_for_words("score", "scoring", SPARK_TIMEOUT_S)
        # The warm-up excludes Spark's slow first batches.
        _publish(site, port, case, WARM_UP_S + seconds)
        began_ns = int(site.result("load")["began_s"] * 1e9 + WARM_UP_S * 1e9)
        sent = round(PUBLISHERS * RATE) * seconds
        shares = {path: case.urgent if path == "alerts" else 1.0 for path in paths}
        wanted = {path: round(sent * share) for path, share in shares.items()}
        _wait_for_rows(data, wanted, began_ns)
        return [_latency(case, path, data, began_ns, wanted[path]) for path in paths]


def _publish(site: Site[None], port: int, case: Case, seconds: int) -> None:
    go, plan = site.folder / "go", site.folder / "plan"
    publishers = [
        {
            "host": "127.0.0.1",
            "port": port,
            "topic": cell_topic(Cell.at(33.5 + number / 100, 133.5)),
            "priority": 4 + number % 2 if _is_urgent(number, case) else 1 + number % 3,
        }
        for number in range(PUBLISHERS)
    ]
    plan.write_text(json.dumps(publishers))
    site.python(
        "load", None, "experiments.bench.traffic_generator",
        "--plan", plan, "--rate", RATE,
        "--each", round(seconds * RATE), "--bytes", SIZE_BYTES, "--packs",
        "--go", go, "--out", site.path("load"),
    )  # fmt: skip
    site.wait_for_words("load", "ready")
    go.touch()
    if not site.wait_for_end("load", seconds + 60.0):
        raise TimeoutError(site.last_words())


def _is_urgent(number: int, case: Case) -> bool:
    return number < PUBLISHERS * case.urgent


def _wait_for_rows(data: Path, wanted: dict[str, int], began_ns: int) -> None:
    deadline_s = time.monotonic() + ROWS_TIMEOUT_S
    for path, count in wanted.items():
        while len(_row_times(data, path, began_ns)) < count:
            if time.monotonic() > deadline_s:
                return  # missing rows are reported as lost
            time.sleep(1.0)


def _row_times(data: Path, path: str, began_ns: int) -> list[tuple[int, int]]:
    """Return publication and commit time of every row, on the monotonic clock (ns)."""
    folder = data / "tables" / path
    wall_ns = time.time_ns() - time.monotonic_ns()
    column = "readings" if path == "alerts" else "payload"
    times = []
    for commit in (folder / "_delta_log").glob("*.json"):
        committed_ns = commit.stat().st_mtime_ns - wall_ns
        actions = map(json.loads, commit.read_text().splitlines())
        adds = [a["add"] for a in actions if "add" in a and a["add"]["dataChange"]]
        rows = [pq.read_table(folder / add["path"])[column] for add in adds]
        times += [
            (_sent_ns(value), committed_ns)
            for part in rows
            for value in part.to_pylist()
        ]
    return [pair for pair in times if pair[0] >= began_ns]


def _sent_ns(value: bytes | list[str]) -> int:
    text = value if isinstance(value, bytes) else " ".join(value).encode()
    return read_stamp(text)[2]


def _latency(case: Case, path: str, data: Path, began_ns: int, wanted: int) -> Latency:
    times = _row_times(data, path, began_ns)
    seconds = sorted((committed - sent) / 1e9 for sent, committed in times)
    distinct = len({sent_ns for sent_ns, _ in times})
    quantiles = (
        statistics.quantiles(seconds, n=100) if len(seconds) > 1 else [None] * 99
    )
    compacted = [ns for ns in _compactions(data / "tables" / path) if ns >= began_ns]
    behind = [_max_of_next_commit(times, ns) for ns in compacted]
    return Latency(
        case.name, path, len(seconds), wanted - distinct,
        len(seconds) - distinct, quantiles[49], quantiles[94], quantiles[98],
        seconds[-1] if seconds else None, len(compacted), max(behind, default=None),
    )  # fmt: skip


def _compactions(folder: Path) -> list[int]:
    """Return the times of compactions of the table, on the monotonic clock (ns)."""
    wall_ns = time.time_ns() - time.monotonic_ns()
    return [
        commit.stat().st_mtime_ns - wall_ns
        for commit in (folder / "_delta_log").glob("*.json")
        if any("remove" in json.loads(line) for line in commit.read_text().splitlines())
    ]


def _max_of_next_commit(times: list[tuple[int, int]], after_ns: int) -> float:
    """Return the maximum latency (s) in the first commit after a time; 0 if none."""
    later = [pair for pair in times if pair[1] > after_ns]
    first_ns = min((committed_ns for _, committed_ns in later), default=0)
    return max(((t - sent) / 1e9 for sent, t in later if t == first_ns), default=0.0)


def _draw(path: Path, rows: list[Latency]) -> None:
    labels = [f"{row.case}: {row.path}" for row in rows]
    series = {
        "p50": [row.p50_s for row in rows],
        "p95": [row.p95_s for row in rows],
        "p99": [row.p99_s for row in rows],
    }
    bars(path, "Publish to row, 1,000 messages a second", labels, series, "s")


@click.command()
@click.option("--quick", is_flag=True, help="10 s of each case instead of 60.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
def main(quick: bool, out: Path) -> None:
    """Measure the latency of urgent messages until their row is visible."""
    interrupt_on_sigterm()
    rows: list[Latency] = []
    for case in CASES:
        print(f"  {case.name} ...", flush=True)
        rows += run(case, 10 if quick else 60)
    head = ("case", "table", "n", "lost", "doubled", "p50 s", "p95 s", "p99 s", "max s",
            "put together", "max after it s")  # fmt: skip
    print("\n" + table(head, [tuple(asdict(row).values()) for row in rows]) + "\n")
    alerts = [row for row in rows if row.path == "alerts"]
    verdicts = [verdict(f"({r.case}) p99, s", r.p99_s, BAR_S) for r in alerts]
    verdicts += [
        verdict("lost and doubled", sum(r.lost + r.doubled for r in alerts), 0)
    ]
    _draw(out / "alert_latency.png", rows)
    result: dict[str, Any] = {"rows": [asdict(row) for row in rows], "bars": verdicts}
    print(*verdicts, f"\n  {write(out, 'alert_latency', result)}", sep="\n")


if __name__ == "__main__":
    main()
