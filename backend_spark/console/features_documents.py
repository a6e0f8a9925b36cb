"""Documents of OGC API Features: landing page, conformance, collections, OpenAPI.

Source: OGC API Features part 1: core (17-069r4), sections 7.2 to 7.13, 8.2 and 9.
"""

from datetime import datetime
from typing import Any, Final

from backend_spark.console.features import (
    CELLS,
    DEFAULT_LIMIT,
    LEVELS,
    MAX_LIMIT,
    PARAMETERS,
    Feature,
    FeaturePage,
)
from backend_spark.exports.formats import GEOJSON, exercise_mark
from backend_spark.sensorthings.entities import time_text

JSON: Final = "application/json"
OPENAPI: Final = "application/vnd.oai.openapi+json;version=3.0"
CRS84: Final = "http://www.opengis.net/def/crs/OGC/1.3/CRS84"
_CLASSES: Final = "http://www.opengis.net/spec/ogcapi-features-1/1.0/conf"

CONFORMANCE: Final = tuple(
    f"{_CLASSES}/{name}" for name in ("core", "oas30", "geojson")
)
"""Conformance classes of the standard."""

EXERCISE: Final = "【訓練】[EXERCISE] "
"""Begin of titles where past data are taken as the present."""

_TITLES: Final = {
    CELLS: "Cells with their present levels",
    LEVELS: "Levels of the cells in each step of ten minutes, newest first",
}

Document = dict[str, Any]


def _link(href: str, rel: str, kind: str, title: str) -> Document:
    return {"href": href, "rel": rel, "type": kind, "title": title}


def landing_page(root: str, title: str) -> Document:
    """The first document, which leads to all others."""
    return {
        "title": title,
        "description": "Landslide levels of S2 cells: equivalent to official levels, "
        "no warnings",
        "links": [
            _link(root, "self", JSON, "This document"),
            _link(f"{root}/api", "service-desc", OPENAPI, "OpenAPI document"),
            _link(f"{root}/api", "service-doc", OPENAPI, "OpenAPI document"),
            _link(f"{root}/conformance", "conformance", JSON, "Conformance classes"),
            _link(f"{root}/collections", "data", JSON, "Collections"),
        ],
    }


def collection_list(root: str, documents: list[Document]) -> Document:
    """All collections."""
    here = _link(f"{root}/collections", "self", JSON, "This document")
    return {"links": [here], "collections": documents}


def collection_document(
    root: str,
    name: str,
    bounds: list[float] | None,
    times: tuple[datetime, datetime] | None,
    *,
    is_exercise: bool = False,
) -> Document:
    """One collection.

    Args:
        root: Address of the service.
        name: Of the collection.
        bounds: Box around its features.
        times: First and last time of its features.
        is_exercise: Whether past data are taken as the present.
    """
    here = f"{root}/collections/{name}"
    extent: Document = {}
    if bounds is not None:
        extent["spatial"] = {"bbox": [bounds], "crs": CRS84}
    if times is not None:
        extent["temporal"] = {"interval": [[time_text(times[0]), time_text(times[1])]]}
    return {
        "id": name,
        "title": f"{EXERCISE * is_exercise}{_TITLES[name]}",
        **exercise_mark(is_exercise),
        "itemType": "feature",
        "crs": [CRS84],
        "extent": extent,
        "links": [
            _link(here, "self", JSON, "This document"),
            _link(f"{here}/items", "items", GEOJSON, "Features"),
        ],
    }


def feature_page(
    page: FeaturePage, links: list[Document], now: datetime, *, is_exercise: bool
) -> Document:
    """One page of features; of an exercise with a mark."""
    document: Document = {
        "type": "FeatureCollection",
        **exercise_mark(is_exercise),
        "features": page.features,
        "links": links,
        "timeStamp": time_text(now),
        "numberReturned": len(page.features),
    }
    if page.matched is not None:
        document["numberMatched"] = page.matched
    return document


def page_links(here: str, next_page: str | None, collection: str) -> list[Document]:
    """Links of a page."""
    links = [
        _link(here, "self", GEOJSON, "This page"),
        _link(collection, "collection", JSON, "The collection"),
    ]
    if next_page is not None:
        links.append(_link(next_page, "next", GEOJSON, "The next page"))
    return links


def feature_document(feature: Feature, here: str, collection: str) -> Document:
    """One feature."""
    return feature | {"links": page_links(here, None, collection)}


_SCHEMAS: Final[Document] = {
    "limit": {
        "type": "integer",
        "minimum": 1,
        "maximum": MAX_LIMIT,
        "default": DEFAULT_LIMIT,
    },
    "bbox": {
        "type": "array",
        "oneOf": [{"minItems": 4, "maxItems": 4}, {"minItems": 6, "maxItems": 6}],
        "items": {"type": "number"},
    },
    "datetime": {"type": "string"},
    "start": {"type": "string"},
    "f": {"type": "string", "enum": ["json"]},
}


def openapi_document(root: str, title: str) -> Document:
    """Description of the interface in OpenAPI 3.0."""
    paths: Document = {
        "/": _path("getLandingPage", "Landing page", JSON),
        "/conformance": _path("getConformance", "Conformance classes", JSON),
        "/collections": _path("getCollections", "Collections", JSON),
    }
    for name, text in _TITLES.items():
        here, suffix = f"/collections/{name}", name.title()
        paths[here] = _path(f"get{suffix}Collection", text, JSON)
        features = _path(f"get{suffix}", text, GEOJSON)
        features["get"]["parameters"] = [
            {"$ref": f"#/components/parameters/{each}"} for each in PARAMETERS
        ]
        paths[f"{here}/items"] = features
        one = _path(f"get{suffix}Feature", "One feature", GEOJSON)
        one["get"]["parameters"] = [{"$ref": "#/components/parameters/featureId"}]
        one["get"]["responses"]["404"] = _response("There is no such feature", JSON)
        paths[f"{here}/items/{{featureId}}"] = one
    return {
        "openapi": "3.0.3",
        "info": {"title": title, "version": "1.0"},
        "servers": [{"url": root}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "parameters": _parameters(),
            "securitySchemes": {"token": {"type": "http", "scheme": "basic"}},
        },
    }


def _path(name: str, text: str, kind: str) -> Document:
    responses = {
        "200": _response(text, kind),
        "400": _response("The request is not valid", JSON),
        "401": {"description": "A token is needed"},
        "503": _response("Too many requests at once", JSON),
    }
    return {"get": {"operationId": name, "summary": text, "responses": responses}}


def _response(text: str, kind: str) -> Document:
    return {"description": text, "content": {kind: {"schema": {"type": "object"}}}}


def _parameters() -> Document:
    found: Document = {
        name: {
            "name": name,
            "in": "query",
            "required": False,
            "schema": schema,
            "style": "form",
            "explode": False,
        }
        for name, schema in _SCHEMAS.items()
    }
    found["featureId"] = {
        "name": "featureId",
        "in": "path",
        "required": True,
        "schema": {"type": "string"},
    }
    return found
