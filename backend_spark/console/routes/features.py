"""Routes of OGC API Features: the cells with their levels, for QGIS and others."""

from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from backend_spark.console import features_documents as documents
from backend_spark.console.dependencies import ConsoleServices, Services, client
from backend_spark.console.features import CELLS, LEVELS, missing_error, parse_selection
from backend_spark.console.http import service_root
from backend_spark.console.panels import utc_time
from backend_spark.errors import StandardsRequestError
from backend_spark.exports.formats import GEOJSON

ROOT: Final = "/ogc"

router = APIRouter(prefix=ROOT, dependencies=[Depends(client)])

Root = Annotated[str, Depends(service_root(ROOT))]


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
        return Response(encoded, error.status, headers, documents.JSON)
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


@router.get("")
@router.get("/")
def landing_page(request: Request, root: Root, services: Services) -> Response:
    """The first document."""
    title = _title(services)
    return _answer(lambda: documents.landing_page(root, title), documents.JSON, request)


def _title(services: ConsoleServices) -> str:
    console = services.settings.console
    mark = documents.EXERCISE * console.exercise
    return f"{mark}Yamamori {console.place}".strip()


@router.get("/api")
def api(request: Request, root: Root, services: Services) -> Response:
    """The OpenAPI document."""
    title = _title(services)
    return _answer(
        lambda: documents.openapi_document(root, title), documents.OPENAPI, request
    )


@router.get("/conformance")
def conformance(request: Request) -> Response:
    """Conformance classes."""
    classes = {"conformsTo": list(documents.CONFORMANCE)}
    return _answer(lambda: classes, documents.JSON, request)


@router.get("/collections")
def collections(request: Request, root: Root, services: Services) -> Response:
    """All collections."""
    return _answer(
        lambda: documents.collection_list(
            root, [_collection(root, name, services) for name in (CELLS, LEVELS)]
        ),
        documents.JSON,
        request,
    )


@router.get("/collections/{name}")
def collection(name: str, request: Request, root: Root, services: Services) -> Response:
    """One collection."""
    return _answer(lambda: _collection(root, name, services), documents.JSON, request)


def _collection(root: str, name: str, services: ConsoleServices) -> dict[str, Any]:
    if name not in {CELLS, LEVELS}:
        raise missing_error("collection", name)
    bounds, times = (
        services.standards.features.bounds(),
        services.standards.features.times(),
    )
    is_exercise = services.settings.console.exercise
    return documents.collection_document(
        root, name, bounds, times, is_exercise=is_exercise
    )


@router.get("/collections/{name}/items")
def items(name: str, request: Request, root: Root, services: Services) -> Response:
    """Features of a collection."""

    def make() -> dict[str, Any]:
        page = services.standards.features.select(
            name, parse_selection(request.query_params.multi_items())
        )
        here = f"{root}/collections/{name}"
        url = request.url
        following = page.next and str(url.include_query_params(start=page.next))
        links = documents.page_links(str(url), following or None, here)
        now = utc_time(services.clock())
        is_exercise = services.settings.console.exercise
        return documents.feature_page(page, links, now, is_exercise=is_exercise)

    return _answer(make, GEOJSON, request)


@router.get("/collections/{name}/items/{key}")
def item(
    name: str, key: str, request: Request, root: Root, services: Services
) -> Response:
    """One feature."""

    def make() -> dict[str, Any]:
        parse_format(request)
        here = f"{root}/collections/{name}"
        feature = services.standards.features.find(name, key)
        return documents.feature_document(feature, str(request.url), here)

    return _answer(make, GEOJSON, request)
