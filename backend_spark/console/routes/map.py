"""Routes of the map's ground: tiles of the packs."""

import logging
import sqlite3
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Path, Request, Response

from backend_spark.console.dependencies import Services, viewer
from backend_spark.tile_packs.reader import (
    MAX_ZOOM,
    MEDIA_TYPES,
    TilePack,
    is_gzip,
)

log = logging.getLogger(__name__)

CACHE: Final = "private, max-age=604800, immutable"
"""A tile's address names the version of its pack, so that a new pack is read anew."""

router = APIRouter(prefix="/api", dependencies=[Depends(viewer)])

Zoom = Annotated[int, Path(ge=0, le=MAX_ZOOM)]
Place = Annotated[int, Path(ge=0, lt=1 << MAX_ZOOM)]


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
