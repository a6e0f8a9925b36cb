"""Catalogue of silver: which nodes, sensors and series of readings there are.

Each file of the table is read once, newest first, in batches; a request reads at most
for a limited time, and the next one goes on from there. So years of readings need
neither memory nor a long first request.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from backend_spark.console.nodes import cell_center, topic_center
from backend_spark.errors import StandardsRequestError
from backend_spark.tables.schemas import SILVER
from backend_spark.tables.store import Folder, is_table, open_files, open_table


def stream_id(node: str, name: str, unit: str | None = None) -> str:
    """Identifier of a datastream.

    Args:
        node: Node id.
        name: Name of its readings.
        unit: Unit of its readings if newer ones have another unit, else None.
    """
    return f"{node}/{name}" if unit is None else f"{node}/{name}@{unit}"


log = logging.getLogger(__name__)

READ_S: Final = 8.0
"""Time that one request reads files for."""

_COLUMNS: Final = pa.schema([
    SILVER.field(name)
    for name in (
        "node", "name", "unit", "cell", "topic", "at", "value", "value_text", "sum"
    )
])  # fmt: skip
_GROUPS: Final = ["node", "name", "unit", "cell", "topic"]


@dataclass(slots=True)
class Series:
    """All readings of one name and unit of one node: a datastream.

    Attributes:
        node: Node id.
        name: Name of the readings, such as ``tilt/x``.
        unit: SenML unit; empty without one.
        cells: Tokens of the cells of its readings, each with the time of the newest.
        topic: Topic of its newest reading.
        first: Time of its oldest reading.
        last: Time of its newest reading.
        counter: Where the newest reading has a count, a key of `COUNTER_NOTES`.
        is_boolean: Whether the newest reading is true or false.
        is_text: Whether the newest reading is a text.
        is_replaced: Whether the name has newer readings in another unit.
    """

    node: str
    name: str
    unit: str
    first: datetime
    last: datetime
    cells: dict[str, datetime] = field(default_factory=dict)
    topic: str = ""
    counter: str = ""
    is_boolean: bool = False
    is_text: bool = False
    is_replaced: bool = False

    @property
    def id(self) -> str:
        """Identifier, as in the export."""
        return stream_id(self.node, self.name, self.unit if self.is_replaced else None)

    @property
    def sensor(self) -> str:
        """Identifier of its sensor: the part of the name before a slash."""
        return f"{self.node}/{self.name.partition('/')[0]}"


@dataclass(slots=True)
class NodeSeries:
    """A node with its series.

    Attributes:
        id: Node id.
        series: In the order of their names.
    """

    id: str
    series: list[Series] = field(default_factory=list)

    @property
    def newest(self) -> Series:
        """The series with the newest reading."""
        return max(self.series, key=lambda each: each.last)

    @property
    def first(self) -> datetime:
        """Time of its oldest reading."""
        return min(each.first for each in self.series)

    @property
    def cell(self) -> str | None:
        """Token of the cell of its newest reading with one; None without any."""
        cells = ((at, cell) for each in self.series for cell, at in each.cells.items())
        return max(cells, default=(None, None))[1]

    def place(self) -> tuple[float, float] | None:
        """Latitude and longitude: the centre of its cell; None if unknown."""
        return topic_center(self.newest.topic) or cell_center(self.cell)


@dataclass(frozen=True)
class Catalogue:
    """Nodes and series at one moment, sorted by identifier.

    Attributes:
        nodes: By id.
        series: By id.
        sensors: Series of each sensor.
        properties: Series of each name.
        cells: Tokens of the cells.
    """

    nodes: dict[str, NodeSeries]
    series: dict[str, Series]
    sensors: dict[str, list[Series]]
    properties: dict[str, list[Series]]
    cells: dict[str, str]

    def series_of(self, node: str, name: str, unit: str) -> Series | None:
        """The series of a reading; None if it is newer than the catalogue."""
        newest = self.series.get(stream_id(node, name))
        if newest is not None and newest.unit == unit:
            return newest
        return self.series.get(stream_id(node, name, unit))


def make_catalogue(series: Iterable[Series]) -> Catalogue:
    """Sort series by node, sensor and name."""
    series = sorted(series, key=lambda each: (each.last, each.unit))
    newest = {(each.node, each.name): each for each in series}
    for each in series:
        each.is_replaced = newest[each.node, each.name] is not each
    nodes: dict[str, NodeSeries] = {}
    sensors: dict[str, list[Series]] = {}
    properties: dict[str, list[Series]] = {}
    by_id = {each.id: each for each in sorted(series, key=lambda each: each.id)}
    for each in by_id.values():
        nodes.setdefault(each.node, NodeSeries(each.node)).series.append(each)
        sensors.setdefault(each.sensor, []).append(each)
        properties.setdefault(each.name, []).append(each)
    cells = sorted({cell for each in by_id.values() for cell in each.cells})
    return Catalogue(
        nodes=dict(sorted(nodes.items())),
        series=by_id,
        sensors=dict(sorted(sensors.items())),
        properties=dict(sorted(properties.items())),
        cells={cell: cell for cell in cells},
    )


class CatalogueReader:
    """Reads the catalogue; for several threads.

    Args:
        path: Folder of the table silver, which may not exist yet.
        monotonic: Clock for the time of reading.
    """

    def __init__(
        self,
        path: Folder,
        monotonic: Callable[[], float],
    ) -> None:
        self._path = path
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._series: dict[tuple[str, str, str], Series] = {}
        self._seen: set[str] = set()
        self._version: int | None = None
        self._made = make_catalogue([])

    def read(self) -> Catalogue:
        """The catalogue of the newest version.

        Raises:
            StandardsRequestError: More files are unread than one request may read; it
                is to be sent again.
        """
        with self._lock:
            if not is_table(self._path):
                return self._made
            table = open_table(self._path)
            if table.version() != self._version:
                self._read_files(table)
                self._version = table.version()
                self._made = make_catalogue(self._series.values())
            return self._made

    def _read_files(self, table: DeltaTable) -> None:
        until_s = self._monotonic() + READ_S
        names = _newest_first(table)
        unread = [name for name in names if name not in self._seen]
        for number, name in enumerate(unread):
            if self._monotonic() > until_s:
                rule = f"sent again: {len(unread) - number} files are still unread"
                raise StandardsRequestError("request", rule, "one", status=503)
            try:
                self._read_file(name)
            except FileNotFoundError as error:  # compacted: its rows are in another
                log.info("%s was removed while being read", error.filename)
            self._seen.add(name)
        self._seen &= set(names)

    def _read_file(self, name: str) -> None:
        files = open_files(self._path)
        file = ds.dataset(name, schema=_COLUMNS, format="parquet", filesystem=files)
        for batch in file.to_batches(batch_size=65_536):
            for row in _groups(batch):
                self._add(row)

    def _add(self, row: dict[str, Any]) -> None:
        key = row["node"], row["name"], row["unit"] or ""
        first, last = row["at_min"], row["at_max"]
        if None in {*key, first, last}:
            return
        known = self._series.setdefault(key, Series(*key, first, last))
        known.first = min(known.first, first)
        if row["cell"] is not None:
            known.cells[row["cell"]] = max(last, known.cells.get(row["cell"], last))
        if last >= known.last:
            known.last = last
            known.topic = row["topic"] or ""
            numbers, texts = row["value_count"], row["value_text_count"]
            known.counter = "" if texts or not row["sum_count"] else "parameters/sum"
            if not numbers and not texts:
                known.counter = "result"
            known.is_boolean = bool(numbers and texts)
            known.is_text = bool(texts and not numbers)


def _newest_first(table: DeltaTable) -> list[str]:
    actions = pa.table(table.get_add_actions(flatten=True))
    if "max.at" in actions.column_names:
        actions = actions.sort_by([("max.at", "descending")])
    return [str(name) for name in actions["path"].to_pylist()]


def _groups(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Readings of a batch by series, cell and topic."""
    rows = pa.Table.from_batches([batch])
    grouped = rows.group_by(_GROUPS).aggregate([
        ("at", "min"),
        ("at", "max"),
        ("value", "count"),
        ("value_text", "count"),
        ("sum", "count"),
    ])
    return list(grouped.filter(pc.is_valid(grouped["node"])).to_pylist())
