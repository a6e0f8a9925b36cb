"""Routes of the standards by which other programs read levels and readings.

OGC API Features, for QGIS and others, has cells and their levels; its documents are
made here. Source: OGC API Features part 1: core (17-069r4), sections 7.2 to 7.13, 8.2
and 9. The OGC SensorThings API 1.1 has the readings.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from backend_spark.console.dependencies import ConsoleServices, Services, client
from backend_spark.console.features import (
    CELLS,
    DEFAULT_LIMIT,
    LEVELS,
    MAX_LIMIT,
    PARAMETERS,
    Feature,
    FeaturePage,
    missing_error,
    parse_selection,
)
from backend_spark.console.http import json_response, service_root
from backend_spark.console.level_grid import utc_time
from backend_spark.errors import StandardsRequestError
from backend_spark.exports.cell_states import GEOJSON, exercise_mark
from backend_spark.sensorthings.entities import ENTITY_SETS, time_text
from backend_spark.sensorthings.request_syntax import parse_options
from backend_spark.sensorthings.service import BareValue

OGC_ROOT: Final = "/ogc"

ogc_router = APIRouter(prefix=OGC_ROOT, dependencies=[Depends(client)])

OgcRoot = Annotated[str, Depends(service_root(OGC_ROOT))]

JSON: Final = "application/json"
OPENAPI: Final = "application/vnd.oai.openapi+json;version=3.0"
CRS84: Final = "http://www.opengis.net/def/crs/OGC/1.3/CRS84"
_OGC_CLASSES: Final = "http://www.opengis.net/spec/ogcapi-features-1/1.0/conf"

OGC_CONFORMANCE: Final = tuple(
    f"{_OGC_CLASSES}/{name}" for name in ("core", "oas30", "geojson")
)
"""Conformance classes of the standard."""

EXERCISE: Final = "【訓練】[EXERCISE] "
"""Begin of titles where past data are taken as the present."""

_TITLES: Final = {
    CELLS: "Cells with their present levels",
    LEVELS: "Levels of the cells in each step of ten minutes, newest first",
}

Document = dict[str, Any]

STA_ROOT: Final = "/sta/v1.1"
_REQUIREMENTS: Final = "http://www.opengis.net/spec/iot_sensing/1.1/req"

STA_CONFORMANCE: Final = (
    f"{_REQUIREMENTS}/datamodel",
    f"{_REQUIREMENTS}/resource-path/resource-path-to-entities",
    f"{_REQUIREMENTS}/request-data",
)
"""Requirements classes of the standard; its others are for writing and MQTT."""

sta_router = APIRouter(prefix=STA_ROOT, dependencies=[Depends(client)])

StaRoot = Annotated[str, Depends(service_root(STA_ROOT))]


def _link(href: str, rel: str, kind: str, title: str) -> Document:
    return {"href": href, "rel": rel, "type": kind, "title": title}


def landing_document(root: str, title: str) -> Document:
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


def page_document(
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


def _answer(make: Callable[[], Any], kind: str, request: Request) -> Response:
    """What a function makes as JSON, or its error in the form of the standard."""
    headers = {"Cache-Control": "no-store"}
    try:
        if kind != GEOJSON:
            parse_format(request)
        content = msgspec.json.encode(make())
    except StandardsRequestError as error:
        codes = {404: "NotFound", 503: "ServerBusy"}
        code = codes.get(error.status, "InvalidParameterValue")
        problem = {"code": code, "description": str(error)}
        encoded = msgspec.json.encode(problem)
        return Response(encoded, error.status, headers | error.headers, JSON)
    return Response(content, headers=headers, media_type=kind)


def parse_format(request: Request) -> None:
    """Check the query of a document, which may only name its format.

    Raises:
        StandardsRequestError: It has another parameter.
    """
    given = request.query_params.multi_items()
    for name, value in given:
        if name != "f" or value != "json":
            raise StandardsRequestError("query parameter", "f=json", f"{name}={value}")


@ogc_router.get("")
@ogc_router.get("/")
def landing_page(request: Request, root: OgcRoot, services: Services) -> Response:
    """The first document."""
    title = _title(services)
    return _answer(lambda: landing_document(root, title), JSON, request)


def _title(services: ConsoleServices) -> str:
    console = services.settings.console
    mark = EXERCISE * console.exercise
    return f"{mark}Yamamori {console.place}".strip()


@ogc_router.get("/api")
def api(request: Request, root: OgcRoot, services: Services) -> Response:
    """The OpenAPI document."""
    title = _title(services)
    return _answer(lambda: openapi_document(root, title), OPENAPI, request)


@ogc_router.get("/conformance")
def conformance(request: Request) -> Response:
    """Conformance classes."""
    classes = {"conformsTo": list(OGC_CONFORMANCE)}
    return _answer(lambda: classes, JSON, request)


@ogc_router.get("/collections")
def collections(request: Request, root: OgcRoot, services: Services) -> Response:
    """All collections."""
    return _answer(
        lambda: collection_list(
            root, [_collection(root, name, services) for name in (CELLS, LEVELS)]
        ),
        JSON,
        request,
    )


@ogc_router.get("/collections/{name}")
def collection(
    name: str, request: Request, root: OgcRoot, services: Services
) -> Response:
    """One collection."""
    return _answer(lambda: _collection(root, name, services), JSON, request)


def _collection(root: str, name: str, services: ConsoleServices) -> Document:
    if name not in {CELLS, LEVELS}:
        raise missing_error("collection", name)
    bounds, times = (
        services.standards.features.bounds(),
        services.standards.features.times(),
    )
    is_exercise = services.settings.console.exercise
    return collection_document(root, name, bounds, times, is_exercise=is_exercise)


@ogc_router.get("/collections/{name}/items")
def items(name: str, request: Request, root: OgcRoot, services: Services) -> Response:
    """Features of a collection."""

    def make() -> Document:
        page = services.standards.features.select(
            name, parse_selection(request.query_params.multi_items())
        )
        here = f"{root}/collections/{name}"
        url = request.url
        following = page.next and str(url.include_query_params(start=page.next))
        links = page_links(str(url), following or None, here)
        now = utc_time(services.clock())
        is_exercise = services.settings.console.exercise
        return page_document(page, links, now, is_exercise=is_exercise)

    return _answer(make, GEOJSON, request)


@ogc_router.get("/collections/{name}/items/{key}")
def item(
    name: str, key: str, request: Request, root: OgcRoot, services: Services
) -> Response:
    """One feature."""

    def make() -> Document:
        parse_format(request)
        here = f"{root}/collections/{name}"
        feature = services.standards.features.find(name, key)
        return feature_document(feature, str(request.url), here)

    return _answer(make, GEOJSON, request)


@sta_router.get("")
@sta_router.get("/")
def entity_sets(root: StaRoot) -> Response:
    """The entity sets, and what the service conforms to."""
    sets = [{"name": name, "url": f"{root}/{name}"} for name in ENTITY_SETS]
    settings = {"conformance": list(STA_CONFORMANCE)}
    return json_response({"serverSettings": settings, "value": sets})


@sta_router.get("/{path:path}")
def entities(
    path: str, request: Request, root: StaRoot, services: Services
) -> Response:
    """Entities, one entity, or one of its properties."""
    try:
        options = parse_options(request.query_params.multi_items())
        found = services.standards.things.answer(root, path, options)
    except StandardsRequestError as error:
        return error_response(error)
    if isinstance(found, BareValue):
        return _bare(found.value)
    return json_response(found)


def error_response(error: StandardsRequestError) -> Response:
    """An error in the form that clients of the standard read."""
    body = {"code": error.status, "type": "error", "message": str(error)}
    answer = json_response(body, error.status)
    answer.headers.update(error.headers)
    return answer


def _bare(value: Any) -> Response:  # noqa: ANN401 - any property
    if isinstance(value, dict):
        return json_response(value)
    text = "" if value is None else str(value)
    headers = {"Cache-Control": "no-store"}
    return Response(text, media_type="text/plain; charset=utf-8", headers=headers)
