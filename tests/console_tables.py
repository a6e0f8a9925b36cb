"""Tables for the console's tests: storms on slopes, scored by the real rules."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from scored_levels import make_levels_table, make_sensors_table, score_levels

from backend_spark.scoring.observation import Observation
from backend_spark.scoring.rules import CellRules
from backend_spark.scoring.score import score_cell
from backend_spark.tables.delta_writer import create_tables
from backend_spark.tables.schemas import LEVELS, SENSORS, SILVER, SPARK_TABLES
from slope_science.levels import Criteria
from spatial_mqtt.cells import ANALYSIS_LEVEL, Cell
from spatial_mqtt.topics import cell_topic

MICRO = 1_000_000
STEP_S = 600
CRITERIA = Criteria.assumed_from(150.0)


@dataclass(frozen=True)
class Slope:
    """One node on a slope and its storm.

    Attributes:
        node: Name of the node.
        latitude: In degrees.
        longitude: In degrees.
        rain_mm: Depth in each 10-minute step; None is a step without a message.
        tilt_deg: Tilt at the end of each step; empty for no tilt meter.
    """

    node: str
    latitude: float
    longitude: float
    rain_mm: Sequence[float | None]
    tilt_deg: Sequence[float] = ()

    @property
    def cell(self) -> Cell:
        """Analysis cell."""
        return Cell.at(self.latitude, self.longitude).parent(ANALYSIS_LEVEL)

    def observations(self, end_s: int) -> Iterator[Observation]:
        """Observations of its node until `end_s`."""
        begin_s = end_s - len(self.rain_mm) * STEP_S
        total_mm = 0.0
        for step, depth_mm in enumerate(self.rain_mm, start=1):
            at_s = begin_s + step * STEP_S
            total_mm += depth_mm or 0.0
            if depth_mm is None:
                continue
            received = round((at_s + 2) * MICRO)
            yield Observation(
                at_s, self.node, "rain", "mm", sum=total_mm, received_us=received
            )
            if self.tilt_deg:
                for axis, share in (("x", 1.0), ("y", 0.5)):
                    value = self.tilt_deg[step - 1] * share
                    yield Observation(
                        at_s,
                        self.node,
                        f"tilt/{axis}",
                        "deg",
                        value,
                        received_us=received,
                    )


def storm(peak_mm: float, hours: int = 24) -> list[float]:
    """Rain in 10-minute steps that rises to `peak_mm` per hour and falls again."""
    steps = hours * 6
    middle = steps * 0.7
    return [
        round(max(0.0, peak_mm / 6 * (1 - abs(at - middle) / middle)), 2)
        for at in range(steps)
    ]


def write_tables(data: Path, slopes: Iterable[Slope], end_s: int) -> None:
    """Append the slopes to the tables of a data folder."""
    folder = data / "tables"
    create_tables(folder, SPARK_TABLES)
    for slope in slopes:
        known = list(slope.observations(end_s))
        rows = make_levels_table(slope.cell.token, score_levels(known, CRITERIA))
        write_deltalake(str(folder / "levels"), rows.cast(LEVELS), mode="append")
        silver = [silver_row(slope, o, seq) for seq, o in enumerate(known)]
        table = pa.Table.from_pylist(silver, schema=SILVER)
        write_deltalake(str(folder / "silver"), table, mode="append")


def dry_slope(node: str, place: int = 0, *, is_silent: bool = False) -> Slope:
    """A slope at level 1; if silent, its node has sent nothing for two hours."""
    drizzle = storm(1, 48)
    rain_mm = [*drizzle[:-12], *[None] * 12] if is_silent else drizzle
    return Slope(node, 33.575 + place / 50, 133.5, rain_mm)


def write_scored(data: Path, slope: Slope, observations: Sequence[Observation]) -> None:
    """Append the readings of a slope with the flags and rates that scoring gives."""
    folder, cell = data / "tables", slope.cell.token
    create_tables(folder, SPARK_TABLES)
    found = score_cell(observations, CellRules(CRITERIA))
    flagged = {(o.name, o.at_s): o for o in found.reflagged}
    silver = [
        silver_row(slope, o, seq) | {"flag": new.flag, "flag_why": new.why}
        for seq, o in enumerate(observations)
        for new in [flagged.get((o.name, o.at_s), o)]
    ]
    levels = make_levels_table(cell, found.rows)
    for name, table in (
        ("levels", levels.cast(LEVELS)),
        ("sensors", make_sensors_table(cell, found.sensors).cast(SENSORS)),
        ("silver", pa.Table.from_pylist(silver, schema=SILVER)),
    ):
        write_deltalake(str(folder / name), table, mode="append")


def silver_row(slope: Slope, observation: Observation, seq: int) -> dict[str, Any]:
    """Row of silver for an observation of a slope."""
    position = Cell.at(slope.latitude, slope.longitude)
    return {
        "node": slope.node,
        "boot": "b1",
        "seq": seq,
        "pri": 1,
        "cell": slope.cell.token,
        "topic": cell_topic(position),
        "name": observation.name,
        "unit": observation.unit,
        "value": observation.value,
        "value_text": observation.text,
        "sum": observation.sum,
        "at": round(observation.at_s * MICRO),
        "received_at": observation.received_us,
        "synchronised": True,
    }
