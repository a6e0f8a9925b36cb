"""Command ``map-pack``: make tile packs for the console from files that are there."""

from pathlib import Path

import click

from backend_spark.cli import usage_errors
from service_runtime.errors import FieldError


@click.group("map-pack")
def map_pack() -> None:
    """Make and check tile packs for the console's map; nothing is fetched."""


source_folder = click.argument("source", type=click.Path(path_type=Path))
out_file = click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="Pack to write (MBTiles); an existing one is replaced.",
)


@map_pack.command("tiles")
@source_folder
@out_file
@click.option(
    "--attribution",
    required=True,
    help="As the source demands it, shown on the map; may hold links.",
)
@click.option("--name", default="base", show_default=True, help="Name of the pack.")
@click.option("--tms", is_flag=True, help="Rows are counted from the south.")
@usage_errors(FieldError)
def tiles(source: Path, out: Path, attribution: str, name: str, *, tms: bool) -> None:
    """Pack a folder of map tiles, zoom/column/row.png (.jpg, .webp, .pbf)."""
    from backend_spark import tile_packs  # noqa: PLC0415 - pmtiles

    form = tile_packs.folder_format(source)
    found = tile_packs.folder_tiles(source, form, tms=tms)
    count = tile_packs.write_pack(
        out, form, tile_packs.PackTexts(name, attribution), found
    )
    click.echo(f"{out}: {count} tiles ({form})")


@map_pack.command("relief")
@source_folder
@out_file
@click.option(
    "--attribution", help="Default: as the Geospatial Information Authority asks for."
)
@click.option(
    "--min-zoom",
    type=click.IntRange(0, 15),
    default=8,
    show_default=True,
    help="Lowest zoom of the pack.",
)
@usage_errors(FieldError)
def relief(source: Path, out: Path, attribution: str | None, min_zoom: int) -> None:
    """Draw a shaded relief from GSI's elevation tiles or digital elevation model."""
    from backend_spark import relief as shading  # noqa: PLC0415 - numpy
    from backend_spark import tile_packs  # noqa: PLC0415 - pmtiles

    heights, text = shading.open_elevation(source)
    texts = tile_packs.PackTexts("relief", attribution or text)
    found = shading.relief_tiles(heights, min_zoom)
    count = tile_packs.write_pack(out, "webp", texts, found)
    click.echo(f"{out}: {count} tiles (webp), up to zoom {heights.zoom}")


@map_pack.command("check")
@click.argument("pack", type=click.Path(path_type=Path))
@usage_errors(FieldError)
def check(pack: Path) -> None:
    """Check a pack as the console does, and show what it holds."""
    from backend_spark.tile_packs import open_pack  # noqa: PLC0415 - pmtiles

    info = open_pack(pack).info
    click.echo(f"format\t{info.format}")
    click.echo(f"zooms\t{info.min_zoom} to {info.max_zoom}")
    click.echo(f"bounds\t{', '.join(f'{side:g}' for side in info.bounds)}")
    click.echo(f"attribution\t{info.attribution or '-'}")
    for layer in info.layers:
        click.echo(f"layer\t{layer}")
