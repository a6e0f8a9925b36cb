"""``python -m experiments.backend_day``: scoring a day of a whole prefecture.

20,000 nodes send a pack of four readings every ten minutes for a day (2.9 million
packs, two nodes per cell); the log is written beforehand with the ingester's own
writer. Then `backend-spark score --once` processes it in ``local[2]`` into bronze,
silver and gold. Wall time is that of the whole process, including the start of Spark;
CPU time is independent of other programs on the machine; memory is the maximum of all
its processes together (proportional set size).
"""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click
import pyarrow.compute as pc

from backend_spark.ingest.segment_log import LogRow, SegmentWriter
from backend_spark.tables.reader import open_tables
from experiments.bench.chart import lines
from experiments.bench.resource_usage import cpu_s, memory_bytes
from experiments.bench.site import Site, interrupt_on_sigterm
from experiments.bench.table import table, verdict, write
from spatial_mqtt.cells import Cell
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import cell_topic

T0: Final = 1_782_831_600
STEPS: Final = 144
SEGMENT_ROWS: Final = 5000
TIMEOUT_S: Final = 3600.0
BAR_S, BAR_BYTES = 600.0, 2 * 2**30
SIZES: Final = (1_000, 5_000, 20_000)


@dataclass(frozen=True)
class Day:
    """Cost of scoring a day."""

    nodes: int
    packs: int
    seconds: float
    cpu_s: float
    peak_bytes: int
    cells: int
    levels: int
    missing: int
    doubled: int


def packs(nodes: int) -> Iterator[LogRow]:
    """Yield the packs of a day in order of time; it rains in the afternoon."""
    topics = [_topic(node) for node in range(nodes)]
    for step in range(STEPS):
        at_s = T0 + 600 * (step + 1)
        rain_mm = 0.5 * max(0, step - 72) * (1 + step % 3)
        for node in range(nodes):
            readings = (
                Reading("rain", "mm", None, rain_mm),
                Reading("tilt/x", "deg", 0.001 * math.sin(node + step)),
                Reading("tilt/y", "deg", 0.0),
                Reading("wire", None, False),
            )
            id_ = MessageId(f"n{node:05d}", "b", step)
            payload = encode_cbor(Pack(id_, 1, at_s, readings))
            received_us = (at_s + 2) * 1_000_000
            yield LogRow(received_us, topics[node], payload, id_.node, "b", step, 1)


def _topic(node: int) -> str:
    cell = node // 2
    return cell_topic(Cell.at(33.0 + cell // 100 * 0.02, 133.0 + cell % 100 * 0.02))


def run(nodes: int) -> Day:
    """Write a day of this number of nodes, then score it."""
    with Site(None) as site:
        data = site.folder / "data"
        writer = SegmentWriter(data / "log", "ingest-0.0a")
        rows: list[LogRow] = []
        for row in packs(nodes):
            rows.append(row)
            if len(rows) == SEGMENT_ROWS:
                writer.append(rows)
                rows = []
        if rows:
            writer.append(rows)
        config = site.folder / "backend.toml"
        config.write_text(
            f'[backend]\ndata = "{data}"\n[score]\nmaster = "local[2]"\n'
            "every_s = 3600\nmax_segments_per_batch = 60\n"
        )
        began_s, peak_bytes, used_s = time.monotonic(), 0, 0.0
        site.python(
            "score", None, "backend_spark", "score", "--config", config, "--once"
        )
        while not site.wait_for_end("score", 1.0):
            peak_bytes = max(peak_bytes, memory_bytes(site.pid("score")))
            used_s = max(used_s, cpu_s(site.pid("score")))
            if time.monotonic() - began_s > TIMEOUT_S:
                raise TimeoutError(site.last_words())
        seconds = time.monotonic() - began_s
        return _result(nodes, data, (seconds, used_s, peak_bytes), site)


def _result(
    nodes: int, data: Path, cost: tuple[float, float, int], site: Site[None]
) -> Day:
    tables = open_tables(data)
    ids = tables.messages(["node", "seq"])
    distinct = ids.group_by(["node", "seq"]).aggregate([]).num_rows
    levels = tables.levels(["cell"])
    if not levels.num_rows:
        raise RuntimeError(site.last_words())
    sent = nodes * STEPS
    lost, doubled = sent - distinct, ids.num_rows - distinct
    cells = len(pc.unique(levels["cell"]))
    return Day(nodes, sent, *cost, cells, levels.num_rows, lost, doubled)


@click.command()
@click.option("--quick", is_flag=True, help="1,000 nodes only.")
@click.option("--nodes", type=int, help="Only this number of nodes.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
def main(quick: bool, nodes: int | None, out: Path) -> None:
    """Measure the cost of a day of many nodes."""
    interrupt_on_sigterm()
    sizes = (nodes,) if nodes else SIZES[:1] if quick else SIZES
    days: list[Day] = []
    for size in sizes:
        print(f"  {size} nodes ...", flush=True)
        days.append(run(size))
        print(f"  {days[-1]}", flush=True)
    head = (
        "nodes",
        "packs",
        "s",
        "CPU s",
        "peak MiB",
        "cells",
        "levels",
        "missing",
        "doubled",
    )
    rows = [
        [v // 2**20 if k == "peak_bytes" else v for k, v in asdict(day).items()]
        for day in days
    ]
    print("\n" + table(head, rows) + "\n")
    last = days[-1]
    share = last.packs / (20_000 * STEPS)
    verdicts = [
        verdict(f"{last.nodes} nodes' day, s", last.seconds, BAR_S * max(share, 0.2)),
        verdict("peak, MiB", last.peak_bytes / 2**20, BAR_BYTES / 2**20),
        verdict("missing and doubled", sum(d.missing + d.doubled for d in days), 0),
    ]
    lines(
        out / "backend_day.png", "A day of many nodes in local[2]",
        [float(d.nodes) for d in days],
        {
            "passed": [d.seconds for d in days],
            "of processors": [d.cpu_s for d in days],
        },
        "nodes", "s",
    )  # fmt: skip
    result: dict[str, Any] = {"days": [asdict(d) for d in days], "bars": verdicts}
    print(*verdicts, f"\n  {write(out, 'backend_day', result)}", sep="\n")


if __name__ == "__main__":
    main()
