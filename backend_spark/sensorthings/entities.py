"""Entity sets: what their properties are, how they are related, and values of paths.

A thing is a node, with its place as location; a sensor is a part of it, such as its
tilt meter; a datastream is the series of one name of readings, an observation one
reading; a feature of interest is the S2 cell on which a level is judged. A path leads
to properties of an entity, and of those that it is related to.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from backend_spark.errors import StandardsRequestError
from backend_spark.exports.cell_states import (
    GEOJSON,
    cell_ring,
    finite_or_none,
)
from backend_spark.sensorthings.catalogue import Catalogue, NodeSeries, Series

_TYPES: Final = "http://www.opengis.net/def/observationType/OGC-OM/2.0/"
MEASURED: Final = f"{_TYPES}OM_Measurement"
TRUTH: Final = f"{_TYPES}OM_TruthObservation"
_UCUM: Final = "http://unitsofmeasure.org/ucum.html#para-"

COUNTER_NOTES: Final = {
    "": "",
    "result": ", counted up since the counter began: take differences",
    "parameters/sum": ", since the reading before; the counter is parameters/sum",
}
"""Where a rain gauge or another counter has its count; end of the description."""

UNITS: Final = {
    "mm": ("millimetre", "mm"),
    "deg": ("degree", "deg"),
    "Cel": ("degree Celsius", "Cel"),
    "Pa": ("pascal", "Pa"),
    "m": ("metre", "m"),
    "%": ("percent", "%"),
    "%RH": ("relative humidity", "%"),
    "V": ("volt", "V"),
    "A": ("ampere", "A"),
    "m/s2": ("metre per second squared", "m/s2"),
    "s": ("second", "s"),
    "/": ("ratio", "1"),
}
"""SenML units with their UCUM names and codes; other units keep their symbol."""


def counter_properties(counter: str) -> dict[str, bool | str | None]:
    """Properties of a datastream: where its count is, a key of `COUNTER_NOTES`."""
    return {"is_counted": counter == "result", "counter": counter or None}


def unit_of_measurement(symbol: str) -> dict[str, str | None]:
    """A unit of SenML as SensorThings writes it; all null without one."""
    if not symbol:
        return {"name": None, "symbol": None, "definition": None}
    name, code = UNITS.get(symbol, (symbol, symbol))
    return {"name": name, "symbol": symbol, "definition": f"{_UCUM}{code}"}


OBSERVATIONS: Final = "Observations"
_ANY_RESULT: Final = (
    "http://www.opengis.net/def/observationType/OGC-OM/2.0/OM_Observation"
)

Record = Any
"""A node, a series, a name, a token, or a row of silver: what an entity is made of."""

Properties = dict[str, Any]


@dataclass(frozen=True)
class Relation:
    """Relation of an entity to those of another set.

    Attributes:
        target: Name of the other set.
        is_many: Whether there may be several.
        find: Records of the other set; for readings see `readings.ReadingFilter`.
    """

    target: str
    is_many: bool
    find: Callable[[Catalogue, Record], Iterable[Record]] = lambda _catalogue, _one: ()


@dataclass(frozen=True)
class EntitySet:
    """One entity set.

    Attributes:
        name: Such as ``Things``.
        names: Names of the properties.
        describe: Properties of a record.
        identify: Identifier of a record.
        records: Records by identifier; none for readings.
        relations: By name.
    """

    name: str
    names: tuple[str, ...]
    describe: Callable[[Record], Properties]
    identify: Callable[[Record], str]
    records: Callable[[Catalogue], dict[str, Record]]
    relations: dict[str, Relation] = field(default_factory=dict)


def _nodes(catalogue: Catalogue) -> dict[str, Record]:
    return catalogue.nodes


def _placed(catalogue: Catalogue) -> dict[str, Record]:
    nodes = catalogue.nodes.items()
    return {name: node for name, node in nodes if node.place() is not None}


def _thing(node: NodeSeries) -> Properties:
    cells = {"cell": node.cell, "topic": node.newest.topic or None}
    return {
        "name": node.id,
        "description": "A node on a slope",
        "properties": {key: value for key, value in cells.items() if value},
    }


def _location(node: NodeSeries) -> Properties:
    latitude, longitude = node.place() or (0.0, 0.0)
    point = [round(longitude, 6), round(latitude, 6)]
    return {
        "name": f"Place of {node.id}",
        "description": "Centre of the cell of the node",
        "encodingType": GEOJSON,
        "location": {"type": "Point", "coordinates": point},
        "properties": {},
    }


def _historical_location(node: NodeSeries) -> Properties:
    return {"time": time_text(node.first)}


def _datastream(series: Series) -> Properties:
    found = {
        "name": series.name,
        "description": f"{series.name} of {series.node}{COUNTER_NOTES[series.counter]}",
        "observationType": _result_type(series),
        "unitOfMeasurement": unit_of_measurement(series.unit),
        "phenomenonTime": f"{time_text(series.first)}/{time_text(series.last)}",
        "properties": counter_properties(series.counter),
    }
    if series.cells:
        found["observedArea"] = _area(series.cells)
    return found


def _result_type(series: Series) -> str:
    if series.is_text:
        return _ANY_RESULT
    return TRUTH if series.is_boolean else MEASURED


def _sensor(parts: Sequence[Series]) -> Properties:
    node, _, sensor = parts[0].sensor.partition("/")
    return {
        "name": sensor,
        "description": f"{sensor} of {node}",
        "encodingType": "text/plain",
        "metadata": ", ".join(dict.fromkeys(part.name for part in parts)),
        "properties": {},
    }


def _observed_property(series: Sequence[Series]) -> Properties:
    name, counters = series[0].name, {each.counter for each in series}
    units = {each.unit for each in series}
    is_one = len(counters) == 1
    note = COUNTER_NOTES[counters.pop()] if is_one else ", see the datastream"
    return {
        "name": name,
        "description": f"{name}{note}",
        "definition": f"urn:yamamori:property:{name}",
        "properties": {"unit": units.pop() or None if len(units) == 1 else None},
    }


def _feature(cell: str) -> Properties:
    return {
        "name": cell,
        "description": "S2 cell of the node, level 13",
        "encodingType": GEOJSON,
        "feature": _polygon(cell),
        "properties": {},
    }


def _polygon(cell: str) -> dict[str, Any]:
    return {"type": "Polygon", "coordinates": [cell_ring(cell)]}


def _area(cells: Iterable[str]) -> dict[str, Any]:
    """The cell of a series, or the box around all if its node has moved."""
    polygons = [_polygon(cell) for cell in cells]
    if len(polygons) == 1:
        return polygons[0]
    points = [point for each in polygons for point in each["coordinates"][0]]
    (west, east), (south, north) = ((min(x), max(x)) for x in zip(*points, strict=True))
    corners = [[west, south], [east, south], [east, north], [west, north]]
    return {"type": "Polygon", "coordinates": [[*corners, corners[0]]]}


def _observation(row: dict[str, Any]) -> Properties:
    parameters = {
        "id": f"{row['node']}/{row['boot']}/{row['seq']}",
        "priority": row["pri"],
        **{name: row[name] for name in ("sum", "why", "flag_why", "synchronised")},
    }
    return {
        "phenomenonTime": time_text(row["at"]),
        "resultTime": time_text(row["received_at"]),
        "result": result_of(row),
        "resultQuality": row["flag"],
        "parameters": {k: v for k, v in parameters.items() if v is not None},
    }


def result_of(row: dict[str, Any]) -> float | bool | str | None:
    """Result of a reading: number, truth value, text, or the sum of a counter."""
    value, text = row["value"], row["value_text"]
    if value is not None:
        return bool(value) if text is not None else finite_or_none(value)
    return finite_or_none(row["sum"]) if text is None else str(text)


def observation_id(row: dict[str, Any]) -> str:
    """Identifier of a reading: that of its message, its time and its name."""
    at_us = round(row["at"].timestamp() * 1_000_000)
    return f"{row['node']}/{row['boot']}/{row['seq']}/{at_us}/{row['name']}"


def time_text(at: datetime | None) -> str | None:
    """A time in UTC in the form of the standard; None without one."""
    if at is None:
        return None
    precision = "milliseconds" if at.microsecond % 1000 == 0 else "microseconds"
    return at.isoformat(timespec=precision).replace("+00:00", "Z")


def _series_of(row: dict[str, Any], catalogue: Catalogue) -> list[Record]:
    found = catalogue.series_of(row["node"], row["name"], row["unit"] or "")
    return [found] if found else []


def _node_of(catalogue: Catalogue, series: Series) -> list[Record]:
    return [catalogue.nodes[series.node]]


_NODE_ITSELF: Final = Relation("Things", True, lambda _catalogue, node: [node])
_OBSERVATIONS: Final = Relation(OBSERVATIONS, is_many=True)

_SETS: Final = (
    EntitySet(
        "Things",
        ("name", "description", "properties"),
        _thing,
        lambda node: str(node.id),
        _nodes,
        {
            "Locations": Relation("Locations", True, lambda _, node: _if_placed(node)),
            "HistoricalLocations": Relation(
                "HistoricalLocations", True, lambda _, node: _if_placed(node)
            ),
            "Datastreams": Relation("Datastreams", True, lambda _, node: node.series),
        },
    ),
    EntitySet(
        "Locations",
        ("name", "description", "encodingType", "location", "properties"),
        _location,
        lambda node: str(node.id),
        _placed,
        {
            "Things": _NODE_ITSELF,
            "HistoricalLocations": Relation(
                "HistoricalLocations", True, lambda _, node: [node]
            ),
        },
    ),
    EntitySet(
        "HistoricalLocations",
        ("time",),
        _historical_location,
        lambda node: str(node.id),
        _placed,
        {
            "Thing": Relation("Things", False, lambda _, node: [node]),
            "Locations": Relation("Locations", True, lambda _, node: [node]),
        },
    ),
    EntitySet(
        "Datastreams",
        (
            "name",
            "description",
            "observationType",
            "unitOfMeasurement",
            "observedArea",
            "phenomenonTime",
            "properties",
        ),
        _datastream,
        lambda series: str(series.id),
        lambda catalogue: catalogue.series,
        {
            "Thing": Relation("Things", False, _node_of),
            "Sensor": Relation(
                "Sensors", False, lambda known, one: [known.sensors[one.sensor]]
            ),
            "ObservedProperty": Relation(
                "ObservedProperties",
                False,
                lambda known, one: [known.properties[one.name]],
            ),
            OBSERVATIONS: _OBSERVATIONS,
        },
    ),
    EntitySet(
        "Sensors",
        ("name", "description", "encodingType", "metadata", "properties"),
        _sensor,
        lambda parts: str(parts[0].sensor),
        lambda catalogue: catalogue.sensors,
        {"Datastreams": Relation("Datastreams", True, lambda _, parts: parts)},
    ),
    EntitySet(
        "ObservedProperties",
        ("name", "description", "definition", "properties"),
        _observed_property,
        lambda series: str(series[0].name),
        lambda catalogue: catalogue.properties,
        {"Datastreams": Relation("Datastreams", True, lambda _, series: series)},
    ),
    EntitySet(
        OBSERVATIONS,
        ("phenomenonTime", "resultTime", "result", "resultQuality", "parameters"),
        _observation,
        observation_id,
        lambda _catalogue: {},
        {
            "Datastream": Relation(
                "Datastreams", False, lambda known, row: _series_of(row, known)
            ),
            "FeatureOfInterest": Relation(
                "FeaturesOfInterest",
                False,
                lambda _, row: [row["cell"]] if row["cell"] else [],
            ),
        },
    ),
    EntitySet(
        "FeaturesOfInterest",
        ("name", "description", "encodingType", "feature", "properties"),
        _feature,
        str,
        lambda catalogue: catalogue.cells,
        {OBSERVATIONS: _OBSERVATIONS},
    ),
)


def _if_placed(node: NodeSeries) -> list[Record]:
    return [node] if node.place() is not None else []


ENTITY_SETS: Final = {each.name: each for each in _SETS}
"""All entity sets of the sensing part, by name."""


MAX_VALUES: Final = 20_000
"""Entities that a path of one entity may lead to."""

MAX_RELATIONS: Final = 3
"""Relations on one path."""

ID_NAMES: Final = frozenset({"id", "@iot.id"})


@dataclass
class PathResolver:
    """Finds the values of paths for one entity.

    Attributes:
        entity_set: Set of the entity.
        record: What it is made of.
        catalogue: Nodes and series.
    """

    entity_set: EntitySet
    record: Record
    catalogue: Catalogue
    _described: dict[int, Properties] = field(default_factory=dict)

    def __call__(self, steps: tuple[str, ...]) -> Any:  # noqa: ANN401 - of any type
        """Value of a path; a list where it leads through several entities.

        Raises:
            StandardsRequestError: There is no such property.
        """
        records, entity_set, is_many = [self.record], self.entity_set, False
        for relations, step in enumerate(steps):
            relation = entity_set.relations.get(step)
            if relation is None:
                rest = steps[relations:]
                values = [self._property(entity_set, each, rest) for each in records]
                return values if is_many else next(iter(values), None)
            if relation.target == OBSERVATIONS or relations == MAX_RELATIONS:
                rule = f"at most {MAX_RELATIONS} relations, none of them Observations"
                raise StandardsRequestError("path", rule, "/".join(steps))
            found = (relation.find(self.catalogue, each) for each in records)
            records = _limited(each for many in found for each in many)
            entity_set = ENTITY_SETS[relation.target]
            is_many = is_many or relation.is_many
        rule = "one that ends with a property"
        raise StandardsRequestError("path", rule, "/".join(steps))

    def _property(
        self, entity_set: EntitySet, record: Record, steps: tuple[str, ...]
    ) -> Any:  # noqa: ANN401 - of any type
        if steps[0] in ID_NAMES:
            return entity_set.identify(record)
        check_property(entity_set, steps[0], "path")
        key = id(record)
        if key not in self._described:
            self._described[key] = entity_set.describe(record)
        value: Any = self._described[key].get(steps[0])
        for step in steps[1:]:
            value = value.get(step) if isinstance(value, dict) else None
        return value


def _limited(records: Iterable[Record]) -> list[Record]:
    found = []
    for each in records:
        found.append(each)
        if len(found) > MAX_VALUES:
            rule = f"paths to at most {MAX_VALUES} entities"
            raise StandardsRequestError("$filter", rule, "a path to more")
    return found


def check_property(entity_set: EntitySet, name: str, option: str) -> None:
    """Check that entities of a set have a property.

    Raises:
        StandardsRequestError: They do not.
    """
    if name not in entity_set.names and name not in ID_NAMES:
        known = ", ".join([*entity_set.names, *entity_set.relations])
        rule = f"a property of {entity_set.name} ({known})"
        raise StandardsRequestError(option, rule, name)
