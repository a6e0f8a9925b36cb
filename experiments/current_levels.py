"""``python -m experiments.current_levels FOLDER``: cost of the newest levels.

Gold of many cells and days is written in files as maintenance leaves them, one a day,
and the last steps in small files, as passes write them; 10,000 cells and 400 days are
576 million rows in 2 GB, and take a quarter of an hour. Then the newest level of each
cell is read and stored, each in a process of its own: from all of gold, from the table
``current``, and while that is a pass behind. Digests of the same gold must be equal.
"""

import hashlib
import math
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backend_spark.tables.current import read_current
from backend_spark.tables.delta_writer import (
    append_rows,
    commit_files,
    create_tables,
    write_row_groups,
)
from backend_spark.tables.maintenance import renew_current, shorten_log
from backend_spark.tables.schemas import LEVELS, SPARK_TABLES
from spatial_mqtt.cells import ANALYSIS_LEVEL, Cell

END_S: Final = 1_793_000_400
STEP_S: Final = 600
STEPS_A_DAY: Final = 144
CELLS_A_COMMIT: Final = 120
SMALL_STEPS: Final = 3
MICRO: Final = 1_000_000
STORM_EVERY_DAYS: Final = 37
REASONS: Final = (
    "soil water index 91.2 mm < advisory criterion 110.0 mm",
    "soil water index 121.4 mm >= advisory criterion 110.0 mm",
    "soil water index 153.9 mm >= warning criterion 150.0 mm",
    "critical line reached: 61.2 mm in 60 min, soil water index 181.2 mm",
    "2 sensors show movement: tilt 0.21 deg/h, displacement 4.1 mm/h",
)


def make_tokens(count: int) -> list[str]:
    """Tokens of cells in a grid, ascending."""
    side = math.ceil(math.sqrt(count))
    places = ((33 + 0.02 * (n // side), 130 + 0.02 * (n % side)) for n in range(count))
    return sorted({Cell.at(*each).parent(ANALYSIS_LEVEL).token for each in places})


def make_rows(tokens: list[str], steps: range) -> pa.Table:
    """Levels of all cells in some steps, counted from the end of the data."""
    cell = np.repeat(np.arange(len(tokens)), len(steps))
    step = np.tile(np.array(steps), len(tokens))
    day, hour = np.divmod(-step, STEPS_A_DAY)
    is_storm = (day % STORM_EVERY_DAYS == 0) & (hour < 12 + cell % 90)
    level = np.where(is_storm, 2 + (cell % 2) + (cell % 31 == 0), 1)
    rain = np.where(is_storm, (cell * 7 + step) % 120 / 2.0, 0.0)
    water = np.round(60 + 30 * level + (cell * 13 + step // 6) % 200 / 8, 1)
    at = pa.array((END_S + step * STEP_S) * MICRO).cast(LEVELS.field("at").type)
    texts = pa.DictionaryArray.from_arrays((level - 1).astype(np.int32), REASONS)
    offsets = np.arange(len(cell) + 1, dtype=np.int32)
    known: dict[str, Any] = {
        "cell": pa.DictionaryArray.from_arrays(cell.astype(np.int32), tokens),
        "at": at,
        "latest_received": pa.array((END_S + step * STEP_S + 4) * MICRO),
        "level": level,
        "reasons": pa.ListArray.from_arrays(offsets, texts.cast(pa.string())),
        "reason_codes": pa.ListArray.from_arrays(offsets, texts.cast(pa.string())),
        "r60_mm": rain,
        "swi_mm": water,
        "s1_mm": np.round(water / 4),
        "s2_mm": np.round(water / 4),
        "s3_mm": np.round(water / 2),
        "margin_mm": 180.0 - water,
        "margin_dry_mm": 185.0 - water,
        "margin_same_mm": 170.0 - water,
        "history_days": np.minimum(60.0, 400.0 + step // STEPS_A_DAY),
        "n_nodes": np.full(len(cell), 2),
        "version": np.full(len(cell), 1),
    }
    for name in ("rain_known", "lower_bound"):
        known[name] = np.full(len(cell), name == "rain_known")
    known["state"] = pa.DictionaryArray.from_arrays(
        np.zeros(len(cell), np.int32), ["judged"]
    )
    columns = [
        pa.array(known[field.name]).cast(field.type)
        if field.name in known
        else pa.nulls(len(cell), field.type)
        for field in LEVELS
    ]
    return pa.Table.from_arrays(columns, schema=LEVELS)


def shift(rows: pa.Table, days: int) -> pa.Table:
    """The same rows some days earlier."""
    for name in ("at", "latest_received"):
        earlier = pc.subtract(rows[name].cast(pa.int64()), days * 86_400 * MICRO)
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(
            at, LEVELS.field(name), earlier.cast(LEVELS.field(name).type)
        )
    return rows


def write_gold(folder: Path, cells: int, days: int) -> None:
    """Write levels, a file a day and small files for the last steps."""
    create_tables(folder, SPARK_TABLES)
    tokens = make_tokens(cells)
    path = folder / "levels"
    day_of = {
        day: range(1 - day * STEPS_A_DAY, 1 - (day - 1) * STEPS_A_DAY) for day in (1, 2)
    }
    calm, storm = (make_rows(tokens, day_of[day]) for day in (2, 1))
    for day in range(days, 1, -1):
        is_storm = (day - 1) % STORM_EVERY_DAYS == 0
        rows = shift(storm if is_storm else calm, day - 1 if is_storm else day - 2)
        commit_files(path, [write_row_groups(path, [rows], LEVELS)])
    rows = make_rows(tokens, day_of[1][:-SMALL_STEPS])
    commit_files(path, [write_row_groups(path, [rows], LEVELS)])
    for step in range(1 - SMALL_STEPS, 1):
        for first in range(0, len(tokens), CELLS_A_COMMIT):
            some = tokens[first : first + CELLS_A_COMMIT]
            append_rows(path, make_rows(some, range(step, step + 1)))
    shorten_log(path)


def append_pass(folder: Path) -> None:
    """Add a step to gold as a pass does, without the table of newest levels."""
    rows = read_current(folder).rows
    tokens = rows["cell"].to_pylist()
    step = 1 + (round(rows["at"][0].as_py().timestamp()) - END_S) // STEP_S
    for first in range(0, len(tokens), CELLS_A_COMMIT):
        some = tokens[first : first + CELLS_A_COMMIT]
        append_rows(folder / "levels", make_rows(some, range(step, step + 1)))


def measure(folder: Path, what: str) -> str:
    """Run a call in a process of its own; its printed figures."""
    command = [sys.executable, "-m", "experiments.current_levels", "--call", what]
    done = subprocess.run(
        [*command, str(folder)], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def call(folder: Path, what: str) -> None:
    """Make a call, and print its time, CPU time, peak memory and result."""
    began_s, cpu_s = time.perf_counter(), time.process_time()
    if what == "read":
        rows = read_current(folder).rows
        result = hashlib.sha256(str(rows["level_since"].to_pylist()).encode())
        text = f"{rows.num_rows} cells, digest {result.hexdigest()[:8]}"
    else:
        text = "stored" if renew_current(folder) else "nothing to store"
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    click.echo(f"{wall_s:.2f} s, {cpu_s:.2f} CPU s, {peak_mib:.0f} MiB; {text}")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--cells", default=10_000, show_default=True)
@click.option("--days", default=400, show_default=True)
@click.option("--call", "what", type=click.Choice(["read", "store"]), hidden=True)
def main(folder: Path, cells: int, days: int, what: str | None) -> None:
    """Measure in FOLDER, which keeps its tables for further runs."""
    if what is not None:
        call(folder, what)
        return
    if not (folder / "levels").exists():
        write_gold(folder, cells, days)
    if (folder / "current").exists():
        shutil.rmtree(folder / "current")
    click.echo(f"read, from all of gold:       {measure(folder, 'read')}")
    click.echo(f"store, from all of gold:      {measure(folder, 'store')}")
    click.echo(f"read:                         {measure(folder, 'read')}")
    append_pass(folder)
    click.echo(f"read, a pass behind:          {measure(folder, 'read')}")
    click.echo(f"store, a pass behind:         {measure(folder, 'store')}")
    click.echo(f"read:                         {measure(folder, 'read')}")


if __name__ == "__main__":
    main()
