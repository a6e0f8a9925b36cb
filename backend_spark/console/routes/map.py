"""Routes of the map: tiles of the packs, and overlays with a search of their names."""

import logging
import sqlite3
from dataclasses import asdict
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response

from backend_spark.console.dependencies import Chief, ConsoleServices, Services, viewer
from backend_spark.console.http import json_response, read_bounded
from backend_spark.console.overlays import MAX_FILE_BYTES, Overlay, overlay_view
from backend_spark.exports.cell_states import GEOJSON
from backend_spark.tile_packs import (
    MAX_ZOOM,
    MEDIA_TYPES,
    TilePack,
    is_gzip,
)
from service_runtime.errors import FieldError

log = logging.getLogger(__name__)

CACHE: Final = "private, max-age=604800, immutable"
"""For addresses whose content never changes: that of a tile names the version of its
pack, so that a new pack is read anew; the id of an overlay is the hash of its content.
"""

MAX_SEARCH: Final = 60

router = APIRouter(prefix="/api", dependencies=[Depends(viewer)])

Zoom = Annotated[int, Path(ge=0, le=MAX_ZOOM)]
Place = Annotated[int, Path(ge=0, lt=1 << MAX_ZOOM)]
OverlayId = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
Text = Annotated[str, Query(max_length=200)]


class TilePlace(msgspec.Struct, frozen=True):
    """Place of a tile in the XYZ scheme."""

    zoom: int
    column: int
    row: int


def tile_place(zoom: Zoom, column: Place, row: Place) -> TilePlace:
    """Place that a request names."""
    return TilePlace(zoom, column, row)


@router.get("/map/{pack}/{zoom}/{column}/{row}")
def tile(
    request: Request,
    services: Services,
    pack: int,
    place: Annotated[TilePlace, Depends(tile_place)],
) -> Response:
    """A tile of a pack; 204 where the pack has none."""
    if not 0 <= pack < len(services.packs):
        raise HTTPException(404, f"there is no map pack {pack}")
    source = services.packs[pack]
    headers = {"Cache-Control": CACHE, "ETag": f'"{source.info.version}"'}
    if request.headers.get("If-None-Match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    found = _read(source, place)
    if found is None:
        return Response(status_code=204, headers=headers)
    if is_gzip(found):
        headers["Content-Encoding"] = "gzip"
    return Response(found, media_type=MEDIA_TYPES[source.info.format], headers=headers)


def _read(source: TilePack, place: TilePlace) -> bytes | None:
    zoom, column, row = place.zoom, place.column, place.row
    if column >> zoom or row >> zoom:
        return None
    try:
        return source.read(zoom, column, row)
    except (sqlite3.Error, ValueError, EOFError, OSError) as error:
        # The file was changed or is damaged; the levels are shown without its ground.
        log.warning("tile %d/%d/%d cannot be read: %s", zoom, column, row, error)
        raise HTTPException(503, "the map pack cannot be read") from error


def pack_descriptions(packs: tuple[TilePack, ...]) -> list[dict[str, Any]]:
    """What the page needs to draw the packs, the lowest first."""
    return [
        {
            "tiles": f"api/map/{at}/{{z}}/{{x}}/{{y}}?v={each.info.version}",
            "vector": each.info.format == "pbf",
            "layers": each.info.layers,
            "min_zoom": each.info.min_zoom,
            "max_zoom": each.info.max_zoom,
            "bounds": each.info.bounds,
            "attribution": each.info.attribution,
        }
        for at, each in enumerate(packs)
    ]


async def overlay_file(request: Request) -> bytes:
    """The body of an upload, of bounded size."""
    return await read_bounded(request, MAX_FILE_BYTES)


@router.get("/overlays")
def overlays(services: Services) -> Response:
    """All overlays, the oldest first."""
    return json_response(overlay_view(services.overlays))


@router.post("/overlays")
def add_overlay(
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
def remove_overlay(
    visitor: Chief, overlay_id: OverlayId, services: Services
) -> Response:
    """Remove an overlay."""
    overlay = _known_overlay(services, overlay_id)
    services.overlays.remove(services.clock(), visitor.account.name, overlay)
    return json_response(overlay_view(services.overlays))


@router.get("/overlays/{overlay_id}.geojson")
def overlay_content(overlay_id: OverlayId, services: Services) -> Response:
    """The features of an overlay."""
    packed = services.overlays.compressed(_known_overlay(services, overlay_id))
    if packed is None:
        raise HTTPException(503, "the overlay's file is missing or was changed")
    headers = {"Content-Encoding": "gzip", "Cache-Control": CACHE}
    return Response(packed, media_type=GEOJSON, headers=headers)


@router.get("/search")
def search(
    services: Services, q: Annotated[str, Query(max_length=MAX_SEARCH)]
) -> Response:
    """Places of the overlays whose name contains a text."""
    return json_response([asdict(each) for each in services.overlays.search(q)])


def _known_overlay(services: ConsoleServices, overlay_id: str) -> Overlay:
    found = services.overlays.find(overlay_id)
    if found is None:
        raise HTTPException(404, "there is no such overlay")
    return found
