"""Routes of the OGC SensorThings API 1.1: the readings, for other programs."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request, Response

from backend_spark.console.dependencies import Services, client
from backend_spark.console.http import json_response, service_root
from backend_spark.errors import StandardsRequestError
from backend_spark.sensorthings.entities import ENTITY_SETS
from backend_spark.sensorthings.request_syntax import parse_options
from backend_spark.sensorthings.service import BareValue

ROOT: Final = "/sta/v1.1"
_REQUIREMENTS: Final = "http://www.opengis.net/spec/iot_sensing/1.1/req"

CONFORMANCE: Final = (
    f"{_REQUIREMENTS}/datamodel",
    f"{_REQUIREMENTS}/resource-path/resource-path-to-entities",
    f"{_REQUIREMENTS}/request-data",
)
"""Requirements classes of the standard; its others are for writing and MQTT."""

router = APIRouter(prefix=ROOT, dependencies=[Depends(client)])

Root = Annotated[str, Depends(service_root(ROOT))]


@router.get("")
@router.get("/")
def entity_sets(root: Root) -> Response:
    """The entity sets, and what the service conforms to."""
    sets = [{"name": name, "url": f"{root}/{name}"} for name in ENTITY_SETS]
    settings = {"conformance": list(CONFORMANCE)}
    return json_response({"serverSettings": settings, "value": sets})


@router.get("/{path:path}")
def entities(path: str, request: Request, root: Root, services: Services) -> Response:
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
    if error.status == 503:  # noqa: PLR2004 - service unavailable
        answer.headers["Retry-After"] = "2"
    return answer


def _bare(value: Any) -> Response:  # noqa: ANN401 - any property
    if isinstance(value, dict):
        return json_response(value)
    text = "" if value is None else str(value)
    headers = {"Cache-Control": "no-store"}
    return Response(text, media_type="text/plain; charset=utf-8", headers=headers)
