"""``python -m experiments.backend_year``: growth of the scoring job over a year.

Four nodes in two cells send a pack of five readings every half hour for 365 days. The
job runs continuously; each day is one segment of the log and one batch. Segments are
written a few days ahead of scoring, so that the job is never idle and a pass covers
some days. Every tenth day one node is offline and its messages arrive two days later,
so that saved states are recomputed. Reported for each month: CPU time and maximum
memory (proportional set size) of all the job's processes, and its storage: saved cell
states, their bytes, the checkpoint, files of the tables and of their logs.
The timestamps of the readings cover a year; the job uses no other clock.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import pyarrow as pa
from deltalake import DeltaTable

from backend_spark.ingest.segment_log import LogRow, SegmentWriter
from backend_spark.tables.reader import DeltaTables, open_tables
from backend_spark.tables.schemas import SPARK_TABLES
from experiments.bench.resource_usage import cpu_s, memory_bytes
from experiments.bench.site import Site, interrupt_on_sigterm
from experiments.bench.table import table, verdict, write
from spatial_mqtt.cells import Cell
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import cell_topic

T0 = 1_782_864_000  # a midnight in UTC
DAY_S, STEPS, NODES, MONTH = 86_400, 48, 4, 30
LATE_EVERY, LATE_BY = 10, 2
AHEAD_DAYS = 3
TIMEOUT_S = 900.0
CELLS = (Cell.at(33.0, 133.0), Cell.at(33.5, 133.5))


@dataclass(frozen=True)
class Month:
    """Cost of a month, and what is stored at its end."""

    to_day: int
    cpu_s_a_day: float
    peak_mib: int
    memories: int
    memory_kib: int
    checkpoint_kib: int
    table_files: int
    log_files: int
    levels: int


def packs(day: int, node: int, received_day: int) -> Iterator[LogRow]:
    """Yield a node's packs of a day; it rains every sixth day."""
    for step in range(STEPS):
        at_s = T0 + DAY_S * day + DAY_S // STEPS * step + 60
        wet = (day // 6) * 40.0 + (40.0 * step / STEPS if day % 6 == 0 else 40.0)
        warm = 15 + 8 * math.sin(2 * math.pi * step / STEPS)
        readings = (
            Reading("rain", "mm", None, round(wet, 1)),
            Reading("tilt/x", "deg", 0.004 * warm + 1e-4 * ((step * 7 + node) % 10)),
            Reading("tilt/y", "deg", 1e-4 * ((step * 3 + node) % 10)),
            Reading("tilt/temp", "Cel", warm),
            Reading("soil", "/", 0.3 + 0.1 * math.sin((day + node) / 9)),
        )
        id_ = MessageId(f"n{node}", "b", day * STEPS + step)
        payload = encode_cbor(Pack(id_, 1, at_s, readings))
        received_us = (at_s + (received_day - day) * DAY_S + 2) * 1_000_000
        topic = cell_topic(CELLS[node % len(CELLS)])
        yield LogRow(received_us, topic, payload, id_.node, "b", id_.seq, 1)


def segment(day: int) -> list[LogRow]:
    """Return the rows that arrive on a day."""
    rows = [
        row
        for node in range(NODES)
        if node or day % LATE_EVERY
        for row in packs(day, node, day)
    ]
    before = day - LATE_BY
    if before >= 0 and before % LATE_EVERY == 0:
        rows += packs(before, 0, day)
    return sorted(rows, key=lambda row: row.received_us)


def is_scored(tables: DeltaTables, day: int) -> bool:
    """Whether the last step of a day has a level."""
    path = str(tables.path("levels"))
    if not DeltaTable.is_deltatable(path):
        return False
    files = pa.table(DeltaTable(path).get_add_actions(flatten=True))
    if "max.at" not in files.column_names:
        return False
    newest = [at for at in files["max.at"].to_pylist() if at is not None]
    end_s = T0 + DAY_S * (day + 1) - DAY_S // STEPS
    return any(at.timestamp() > end_s for at in newest)


class JobMonitor:
    """Measures a running job, month by month."""

    def __init__(self, pid: int, data: Path) -> None:
        self._pid, self._data = pid, data
        self._cpu_s, self._day = cpu_s(pid), 0
        self.peak_bytes = 0

    def sample_memory(self) -> None:
        """Update the maximum memory."""
        self.peak_bytes = max(self.peak_bytes, memory_bytes(self._pid))

    def month(self, day: int) -> Month:
        """Return the cost since the last month, and what is stored now."""
        used_s, days = cpu_s(self._pid) - self._cpu_s, day - self._day
        self._cpu_s, self._day = self._cpu_s + used_s, day
        tables = open_tables(self._data)
        states = tables.read("memories", ["cell", "body"])
        stored = sum(len(body) for body in states["body"].to_pylist())
        checkpoint = (self._data / "checkpoints").rglob("*")
        result = Month(
            day,
            round(used_s / days, 2),
            self.peak_bytes >> 20,
            states.num_rows,
            stored >> 10,
            sum(f.stat().st_size for f in checkpoint if f.is_file()) >> 10,
            sum(len(DeltaTable(str(tables.path(n))).file_uris()) for n in SPARK_TABLES),
            sum(len(list(tables.path(n).glob("_delta_log/*"))) for n in SPARK_TABLES),
            tables.dataset("levels").count_rows(),
        )
        self.peak_bytes = 0
        return result


def wait_until_scored(site: Site[None], data: Path, day: int) -> None:
    """Wait until a day has its levels."""
    since_s = time.monotonic()
    while not is_scored(open_tables(data), day):
        if time.monotonic() - since_s > TIMEOUT_S:
            raise TimeoutError(site.last_words())
        time.sleep(0.5)


def run(days: int) -> list[Month]:
    """Run the job over this number of days."""
    months: list[Month] = []
    with Site(None) as site:
        data = site.folder / "data"
        writer = SegmentWriter(data / "log", "ingest-0.0a")
        config = site.folder / "backend.toml"
        config.write_text(
            f'[backend]\ndata = "{data}"\n[score]\nmaster = "local[2]"\n'
            "every_s = 0\ntrigger_s = 0\nmax_segments_per_batch = 1\n"
        )
        site.python("score", None, "backend_spark", "score", "--config", config)
        monitor = JobMonitor(site.pid("score"), data)
        for day in range(days):
            writer.append(segment(day))
            is_last = (day + 1) % MONTH == 0 or day == days - 1
            wait_until_scored(site, data, day if is_last else day - AHEAD_DAYS)
            monitor.sample_memory()
            if is_last:
                months.append(monitor.month(day + 1))
                print(f"  {months[-1]}", flush=True)
    return months


@click.command()
@click.option("--quick", is_flag=True, help="120 days only.")
@click.option("--days", type=int, help="Only this number of days.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
def main(quick: bool, days: int | None, out: Path) -> None:
    """Measure whether the cost of scoring grows with the age of its tables."""
    interrupt_on_sigterm()
    months = run(days or (120 if quick else 365))
    head = tuple(asdict(months[0]))
    print("\n" + table(head, [list(asdict(month).values()) for month in months]) + "\n")
    second, last = months[min(1, len(months) - 1)], months[-1]
    verdicts = [
        verdict("CPU s a day, last month", last.cpu_s_a_day, 1.5 * second.cpu_s_a_day),
        verdict("peak MiB, last month", last.peak_mib, 1.25 * second.peak_mib),
        verdict("memories of two cells", last.memories, 2 * 14),
    ]
    result = {"months": [asdict(month) for month in months], "bars": verdicts}
    print(*verdicts, f"\n  {write(out, 'backend_year', result)}", sep="\n")


if __name__ == "__main__":
    main()
