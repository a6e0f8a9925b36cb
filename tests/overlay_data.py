"""Overlay files for tests: GeoJSON, zipped Shapefiles and lists."""

import io
import json
import zipfile
from typing import Any

import shapefile

WGS84 = 'GEOGCS["JGD2011",DATUM["Japanese_Geodetic_Datum_2011"]]'
PLANE = 'PROJCS["JGD2011 / Japan Plane Rectangular CS IV",GEOGCS["JGD2011"]]'
SQUARE = [[133.50, 33.57], [133.51, 33.57], [133.51, 33.58], [133.50, 33.57]]


def geojson(*features: tuple[str, Any, dict[str, Any]]) -> bytes:
    """A collection of features: type, coordinates, properties."""
    listed = [
        {
            "type": "Feature",
            "properties": properties,
            "geometry": {"type": kind, "coordinates": coordinates},
        }
        for kind, coordinates, properties in features
    ]
    return json.dumps({"type": "FeatureCollection", "features": listed}).encode()


ZONE = geojson(("Polygon", [SQUARE], {"名称": "大谷一号"}))


def zones_shapefile(projection: str = WGS84, encoding: str = "cp932") -> bytes:
    """A warning zone and a special one, with the columns of A33, zipped."""
    parts = {suffix: io.BytesIO() for suffix in ("shp", "shx", "dbf")}
    writer = shapefile.Writer(**parts, encoding=encoding)
    writer.field("A33_002", "C", 1)
    writer.field("A33_005", "C", 80)
    for code, name in (("1", "大谷川"), ("2", "大谷川（特）")):
        writer.poly([SQUARE])
        writer.record(code, name)
    writer.close()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for suffix, content in parts.items():
            archive.writestr(f"A33/zones.{suffix}", content.getvalue())
        archive.writestr("A33/zones.prj", projection)
        if encoding != "cp932":
            archive.writestr("A33/zones.cpg", encoding)
        archive.writestr("__MACOSX/zones.shp", b"")
    return file.getvalue()
