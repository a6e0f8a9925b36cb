"""Readings in the shape of OGC SensorThings: things, datastreams, observations.

Source: OGC SensorThings API part 1: sensing 1.1 (18-088), section 8.2.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Final

from backend_spark.exports.geojson import finite, ring

_TYPES: Final = "http://www.opengis.net/def/observationType/OGC-OM/2.0/"
_MEASURED: Final = f"{_TYPES}OM_Measurement"
_TRUTH: Final = f"{_TYPES}OM_TruthObservation"
_UCUM: Final = "http://unitsofmeasure.org/ucum.html#para-"

COUNTED: Final = ", counted up since the counter began: take differences"
"""Of rain gauges and other counters, whose results are sums."""

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
"""SenML's units with their UCUM codes; another one keeps its own symbol."""


def things(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Readings of silver, by node and by what is measured.

    A failed reading is there too, with its flag as `resultQuality`: who reads it
    decides. One without a number is left out.
    """
    nodes: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row["value"] is None and row["sum"] is None:
            continue
        streams = nodes.setdefault(row["node"], {})
        stream = streams.setdefault(row["name"], _stream(row))
        stream["Observations"].append(_observation(row))
    made = [_thing(node, streams) for node, streams in sorted(nodes.items())]
    return {"@iot.count": len(made), "value": made}


def _thing(node: str, streams: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "@iot.id": node,
        "name": node,
        "description": "A node on a slope",
        "Datastreams": [streams[name] for name in sorted(streams)],
    }


def _stream(row: dict[str, Any]) -> dict[str, Any]:
    is_truth = row["value_text"] is not None
    is_counted = row["value"] is None
    symbol = row["unit"] or ""
    name, code = UNITS.get(symbol, (symbol, symbol))
    unit = {"name": name, "symbol": symbol, "definition": f"{_UCUM}{code}"}
    none = {"name": None, "symbol": None, "definition": None}
    return {
        "@iot.id": f"{row['node']}/{row['name']}",
        "name": row["name"],
        "description": f"{row['name']} of {row['node']}{COUNTED * is_counted}",
        "observationType": _TRUTH if is_truth else _MEASURED,
        "unitOfMeasurement": unit if symbol else none,
        "ObservedProperty": {
            "name": row["name"].partition("/")[0],
            "description": f"{row['name']}{COUNTED * is_counted}",
        },
        "Observations": [],
    }


def _observation(row: dict[str, Any]) -> dict[str, Any]:
    number = row["value"] if row["value"] is not None else row["sum"]
    is_truth = row["value_text"] is not None
    made = {
        "phenomenonTime": _time(row["at"]),
        "resultTime": _time(row["received_at"]),
        "result": bool(number) if is_truth else finite(number),
        "resultQuality": row["flag"],
        "parameters": dict(_parameters(row)),
    }
    if row["cell"] is not None:
        made["FeatureOfInterest"] = {
            "name": row["cell"],
            "description": "S2 cell of the node, level 13",
            "encodingType": "application/geo+json",
            "feature": {"type": "Polygon", "coordinates": [ring(row["cell"])]},
        }
    return made


def _parameters(row: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "id", f"{row['node']}/{row['boot']}/{row['seq']}"
    yield "priority", row["pri"]
    for name in ("sum", "why", "flag_why", "synchronised"):
        if row[name] is not None:
            yield name, row[name]


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
