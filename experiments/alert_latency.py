"""``python -m experiments.alert_latency``: from a publish to the row of an alert.

200 publishers send 1,000 packs a second to a real Mosquitto; `backend-spark ingest`,
`alerts` and `score` (Spark, ``local[2]``) run beside them on the same machine. The
publish time stands in each pack; the row is there when the Delta commit that holds
it is (the time of its file). The table is put together every 50 commits; rows of the
commit after it are told apart. For comparison: the same messages in the table bronze,
which is what a path through the Spark job would give, and alerts without Spark.
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
from experiments.bench import stamped
from experiments.bench.chart import bars
from experiments.bench.site import Site, interrupt_on_sigterm
from experiments.bench.table import table, verdict, write
from spatial_mqtt.cells import Cell
from spatial_mqtt.topics import cell_topic

PUBLISHERS: Final = 200
RATE: Final = 5.0
SIZE_BYTES: Final = 143
BAR_S: Final = 1.0
WARM_UP_S: Final = 20
WAIT_S: Final = 180.0
SPARK_S: Final = 300.0


@dataclass(frozen=True)
class Case:
    """A load.

    Attributes:
        name: In tables.
        urgent: Share of publishers whose packs are of priority 4 or 5.
        has_score: Whether the Spark job runs beside.
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
    """Publish to row, in seconds.

    Attributes:
        compactions: How often the table was put together meanwhile.
        behind_s: Longest time of a row of the next commit.
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
    """Run one case; one row for each path."""
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
            site.wait_for_words("score", "scoring", SPARK_S)
        # Spark's cold first batches are no property of the path.
        _load(site, port, case, WARM_UP_S + seconds)
        began_ns = int(site.result("load")["began_s"] * 1e9 + WARM_UP_S * 1e9)
        sent = round(PUBLISHERS * RATE) * seconds
        shares = {path: case.urgent if path == "alerts" else 1.0 for path in paths}
        wanted = {path: round(sent * share) for path, share in shares.items()}
        _wait_for_rows(data, wanted, began_ns)
        return [_latency(case, path, data, began_ns, wanted[path]) for path in paths]


def _load(site: Site[None], port: int, case: Case, seconds: int) -> None:
    go, plan = site.folder / "go", site.folder / "plan"
    told = [
        {
            "host": "127.0.0.1",
            "port": port,
            "topic": cell_topic(Cell.at(33.5 + number / 100, 133.5)),
            "priority": 4 + number % 2 if _is_urgent(number, case) else 1 + number % 3,
        }
        for number in range(PUBLISHERS)
    ]
    plan.write_text(json.dumps(told))
    site.python(
        "load", None, "experiments.bench.load", "--plan", plan, "--rate", RATE,
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
    until_s = time.monotonic() + WAIT_S
    for path, count in wanted.items():
        while len(_seen(data, path, began_ns)) < count:
            if time.monotonic() > until_s:
                return  # what is missing is told as lost
            time.sleep(1.0)


def _seen(data: Path, path: str, began_ns: int) -> list[tuple[int, int]]:
    """Publish and commit time of every row, on the monotonic clock, in ns."""
    folder = data / "tables" / path
    wall_ns = time.time_ns() - time.monotonic_ns()
    column = "readings" if path == "alerts" else "payload"
    seen = []
    for commit in (folder / "_delta_log").glob("*.json"):
        there_ns = commit.stat().st_mtime_ns - wall_ns
        actions = map(json.loads, commit.read_text().splitlines())
        adds = [a["add"] for a in actions if "add" in a and a["add"]["dataChange"]]
        rows = [pq.read_table(folder / add["path"])[column] for add in adds]
        seen += [
            (_sent_ns(told), there_ns) for part in rows for told in part.to_pylist()
        ]
    return [pair for pair in seen if pair[0] >= began_ns]


def _sent_ns(told: bytes | list[str]) -> int:
    text = told if isinstance(told, bytes) else " ".join(told).encode()
    return stamped.read(text)[2]


def _latency(case: Case, path: str, data: Path, began_ns: int, wanted: int) -> Latency:
    seen = _seen(data, path, began_ns)
    seconds = sorted((there_ns - sent_ns) / 1e9 for sent_ns, there_ns in seen)
    distinct = len({sent_ns for sent_ns, _ in seen})
    cuts = statistics.quantiles(seconds, n=100) if len(seconds) > 1 else [None] * 99
    compacted = [ns for ns in _compactions(data / "tables" / path) if ns >= began_ns]
    behind = [_next_longest(seen, ns) for ns in compacted]
    return Latency(
        case.name, path, len(seconds), wanted - distinct,
        len(seconds) - distinct, cuts[49], cuts[94], cuts[98],
        seconds[-1] if seconds else None, len(compacted), max(behind, default=None),
    )  # fmt: skip


def _compactions(folder: Path) -> list[int]:
    """When the table was put together, on the monotonic clock, in ns."""
    wall_ns = time.time_ns() - time.monotonic_ns()
    return [
        commit.stat().st_mtime_ns - wall_ns
        for commit in (folder / "_delta_log").glob("*.json")
        if any("remove" in json.loads(line) for line in commit.read_text().splitlines())
    ]


def _next_longest(seen: list[tuple[int, int]], after_ns: int) -> float:
    """The longest time of the rows of the first commit after a moment; 0 of none."""
    later = [pair for pair in seen if pair[1] > after_ns]
    first_ns = min((there_ns for _, there_ns in later), default=0)
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
    """Measure how long an urgent message takes to its row."""
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
    told: dict[str, Any] = {"rows": [asdict(row) for row in rows], "bars": verdicts}
    print(*verdicts, f"\n  {write(out, 'alert_latency', told)}", sep="\n")


if __name__ == "__main__":
    main()
