"""Routes of the overlays: list, read, add and remove them, and search their names."""

from dataclasses import asdict
from typing import Annotated, Final

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response

from backend_spark.console.dependencies import Chief, ConsoleServices, Services, viewer
from backend_spark.console.http import json_response, read_bounded
from backend_spark.console.overlay_files import MAX_FILE_BYTES
from backend_spark.console.overlays import Overlay, overlay_view
from service_runtime.errors import FieldError

CACHE: Final = "private, max-age=604800, immutable"
"""The id of an overlay is the hash of its content."""

MAX_SEARCH: Final = 60

router = APIRouter(prefix="/api", dependencies=[Depends(viewer)])

OverlayId = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
Text = Annotated[str, Query(max_length=200)]


async def overlay_file(request: Request) -> bytes:
    """The body of an upload, of bounded size."""
    return await read_bounded(request, MAX_FILE_BYTES)


@router.get("/overlays")
def overlays(services: Services) -> Response:
    """All overlays, the oldest first."""
    return json_response(overlay_view(services.overlays))


@router.post("/overlays")
def add(
    visitor: Chief,
    services: Services,
    title: Text,
    kind: Text,
    raw: Annotated[bytes, Depends(overlay_file)],
) -> Response:
    """Add the file in the body as an overlay."""
    name, now_s = visitor.account.name, services.clock()
    try:
        services.overlays.add(now_s, name, title, kind, raw)
    except FieldError as error:
        raise HTTPException(422, str(error)) from error
    return json_response(overlay_view(services.overlays))


@router.post("/overlays/{overlay_id}/remove")
def remove(visitor: Chief, overlay_id: OverlayId, services: Services) -> Response:
    """Remove an overlay."""
    overlay = _known(services, overlay_id)
    services.overlays.remove(services.clock(), visitor.account.name, overlay)
    return json_response(overlay_view(services.overlays))


@router.get("/overlays/{overlay_id}.geojson")
def content(overlay_id: OverlayId, services: Services) -> Response:
    """The features of an overlay."""
    packed = services.overlays.compressed(_known(services, overlay_id))
    if packed is None:
        raise HTTPException(503, "the overlay's file is missing or was changed")
    headers = {"Content-Encoding": "gzip", "Cache-Control": CACHE}
    return Response(packed, media_type="application/geo+json", headers=headers)


@router.get("/search")
def search(
    services: Services, q: Annotated[str, Query(max_length=MAX_SEARCH)]
) -> Response:
    """Places of the overlays whose name contains a text."""
    return json_response([asdict(each) for each in services.overlays.search(q)])


def _known(services: ConsoleServices, overlay_id: str) -> Overlay:
    found = services.overlays.find(overlay_id)
    if found is None:
        raise HTTPException(404, "there is no such overlay")
    return found
