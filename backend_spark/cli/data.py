"""Commands that read and write data.

``index``, ``export``, ``sql``, ``joint``, ``postgis``, ``forecast``, ``analysis``,
``plot``, ``backup``, ``restore`` and ``map-pack``.
"""

import os
import re
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backend_spark import rain_table
from backend_spark.cli import (
    answer_format_option,
    config_option,
    parse_time_option,
    usage_errors,
    writing,
)
from backend_spark.config import TABLES_FOLDER, BackendSettings, read_settings
from backend_spark.errors import ExportError, PlotError, SqlError
from service_runtime.errors import FieldError
from service_runtime.lifecycle import EXIT_USAGE_DATA

if TYPE_CHECKING:
    from backend_spark.analysed_rain import AnalysisImporter

EXIT_NOT_CURRENT = 75
"""EX_TEMPFAIL of sysexits.h: a backend is stale, ahead, empty or unreachable."""


@click.command()
@click.argument("rain_csv")
@click.option("--column", default="rain_mm", show_default=True, help="Rain, in mm.")
@click.option(
    "--step",
    default="10min",
    show_default=True,
    help="Time step of a row: a whole fraction of an hour, such as 10min or 1h. "
    "Official criteria assume 10min.",
)
@click.option(
    "--missing",
    type=click.Choice(["error", "skip-rain"]),
    default="error",
    show_default=True,
    help="How to treat an empty cell, which is never zero: skip-rain drains the tanks "
    "and leaves the row's rain empty; the index is a lower bound from there.",
)
@click.option(
    "--amedas",
    metavar="STATION",
    help="Read JMA's download of hourly rain of this station; each hour counts as six "
    "equal steps. --column and --step are ignored.",
)
def index(
    rain_csv: str, column: str, step: str, missing: str, amedas: str | None
) -> None:
    """Print the soil water index of a table of rain ('-' reads standard input)."""
    may_miss = missing == "skip-rain"
    if amedas is not None:
        lines = rain_table.amedas_soil_water_lines(
            rain_csv, amedas, allow_missing=may_miss
        )
    else:
        lines = rain_table.soil_water_lines(
            rain_table.read_rain_text(rain_csv),
            column=column,
            step_h=rain_table.parse_step_h(step),
            allow_missing=may_miss,
        )
    for line in lines:
        click.echo(line)


@click.command()
@config_option
@click.option(
    "--format",
    "form",
    type=click.Choice([
        "cap",
        "csv",
        "geojson",
        "geoparquet",
        "parquet",
        "sensorthings",
    ]),
    required=True,
    help="cap, geojson and geoparquet: levels at one time. csv and parquet: rows of a "
    "table. sensorthings: readings.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Default: stdout.",
)
@click.option(
    "--table",
    default="levels",
    show_default=True,
    help="For csv and parquet.",
)
@click.option("--at", callback=parse_time_option, help="Time; the present by default.")
@click.option(
    "--from", "begin", callback=parse_time_option, help="Rows from this time on."
)
@click.option("--to", "end", callback=parse_time_option, help="Rows before this time.")
@click.option("--cell", help="Rows of this cell (S2 token).")
@click.option("--node", help="Rows of this node.")
@click.option(
    "--tz",
    "zone",
    type=click.Choice(["UTC", "JST"]),
    default="UTC",
    show_default=True,
    help="For csv and parquet: zone of the times.",
)
@click.option("--sender", help="For cap: id without blanks, such as an address.")
@click.option("--sender-name", default="", help="For cap: name shown to people.")
@click.option(
    "--status",
    type=click.Choice(["Draft", "Exercise", "Test"]),
    default="Draft",
    show_default=True,
    help="For cap; only the operator may make it Actual.",
)
@click.option(
    "--min-level",
    type=click.IntRange(2, 5),
    default=2,
    show_default=True,
    help="For cap: lower levels are left out.",
)
@click.option(
    "--updates",
    "updated",
    type=click.Path(path_type=Path),
    multiple=True,
    help="For cap: an earlier message that this one replaces.",
)
@click.option(
    "--cancels",
    "cancelled",
    type=click.Path(path_type=Path),
    multiple=True,
    help="For cap: an earlier message that this one cancels.",
)
def export(config_path: Path, form: str, out: Path | None, **more: object) -> None:
    """Write levels, readings or a table for other programs."""
    settings = read_settings(config_path)
    from backend_spark.exports.formats import write_export as run  # noqa: PLC0415 - pyarrow
    from backend_spark.scoring.holds import HoldLimits  # noqa: PLC0415

    with usage_errors(ExportError):
        run(settings.backend, form, out, more, HoldLimits(settings.score.hold_s))


@click.command()
@config_option
@answer_format_option
@click.argument("query", required=False)
def sql(config_path: Path, form: str, query: str | None) -> None:
    """Answer a QUERY in SQL on the tables, by DuckDB; nothing can be changed.

    Without QUERY it is read from standard input; from a terminal, one after the other.
    """
    settings = read_settings(config_path)
    from backend_spark.exports.sql import run_sql  # noqa: PLC0415 - DuckDB

    with usage_errors(SqlError):
        run_sql(settings.backend, settings.score.hold_s, query, form)


@click.command()
@config_option
@answer_format_option
@click.argument("query", required=False)
def joint(config_path: Path, form: str, query: str | None) -> None:
    """Answer a QUERY in SQL on the newest levels of several backends.

    Without QUERY a line for each backend. A backend that is stale, ahead, empty or
    unreachable is named on standard error, and the status is 75.
    """
    from backend_spark.exports import sql as view  # noqa: PLC0415 - DuckDB

    settings = view.read_joint_settings(config_path)
    with usage_errors(SqlError):
        is_complete = view.run_joint(settings, query, form, time.time())
    if not is_complete:
        sys.exit(EXIT_NOT_CURRENT)


@click.group()
def forecast() -> None:
    """Load official rain forecasts for the next two hours."""


@forecast.command("load")
@config_option
@click.option(
    "--as-issued",
    is_flag=True,
    help="Past forecasts: each counts as known since its issue, not since now.",
)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
def load_files(config_path: Path, as_issued: bool, paths: tuple[Path, ...]) -> None:
    """Load CSV and JSON files, or those of folders; by default of forecast.folder.

    An issue that is already in the table is not changed, so the same files can be
    loaded again. A file with an error is reported and skipped whole.
    """
    settings = read_settings(config_path)
    folder = settings.forecast.folder
    sources = paths or ((Path(folder),) if folder else ())
    if not sources:
        raise click.UsageError("give PATHS, or set forecast.folder in the settings")
    from backend_spark.forecast import ForecastImporter as Loader  # noqa: PLC0415 - delta-rs is slow
    from backend_spark.tables.store import tables_folder  # noqa: PLC0415 - the same

    loader = Loader(
        tables_folder(settings.backend),
        settings.keep,
        time.time(),
        as_issued,
        Path(settings.backend.data) / TABLES_FOLDER,
    )
    _report(loader.import_files(sources))


def _report(results: Iterable[object]) -> None:
    """Print the result of each file, then exit with an error if there was one."""
    has_failed = False
    for result in results:
        is_error = isinstance(result, ValueError)
        has_failed = has_failed or is_error
        click.echo(str(result), err=is_error)
    if has_failed:
        sys.exit(EXIT_USAGE_DATA)


@click.group()
def analysis() -> None:
    """Load JMA's analysed rain and soil water index on the 1 km grid."""


@analysis.command("load")
@config_option
@click.option(
    "--as-issued",
    is_flag=True,
    help="Past analyses: each counts as known since its time, not since now.",
)
@click.option(
    "--soil-water",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the soil water index; by default analysis.soil_water_folder.",
)
@click.option(
    "--rain",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of analysed rain; by default analysis.rain_folder.",
)
def load_analyses(
    config_path: Path, as_issued: bool, soil_water: Path | None, rain: Path | None
) -> None:
    """Load new GRIB2 files of both folders.

    The meshes of criteria.file and of the cells with a node are loaded. A file that was
    loaded is not loaded again. One with an error is reported and, a minute after it
    was written, moved to the subfolder refused, with its reasons.
    """
    settings = read_settings(config_path)
    from backend_spark.grib_files import Product  # noqa: PLC0415 - numpy

    given = {
        Product.SOIL_WATER: soil_water or settings.analysis.soil_water_folder,
        Product.RAIN: rain or settings.analysis.rain_folder,
    }
    folders = {product: Path(folder) for product, folder in given.items() if folder}
    if not folders:
        raise click.UsageError(
            "give --soil-water or --rain, or set analysis.soil_water_folder or "
            "analysis.rain_folder in the settings"
        )
    _report(_importer(settings, as_issued=as_issued).import_folders(folders))


def _importer(settings: BackendSettings, *, as_issued: bool) -> "AnalysisImporter":
    from backend_spark.analysed_cells import meshes_of_interest  # noqa: PLC0415
    from backend_spark.analysed_rain import AnalysisImporter  # noqa: PLC0415
    from backend_spark.criteria.cell_rules import CellRuleProvider  # noqa: PLC0415
    from backend_spark.tables.reader import DeltaTables  # noqa: PLC0415
    from backend_spark.tables.store import tables_folder  # noqa: PLC0415

    tables = tables_folder(settings.backend)
    locks = Path(settings.backend.data) / TABLES_FOLDER
    criteria = CellRuleProvider.from_settings(settings.criteria).current_table()
    cells = DeltaTables(tables).nodes(["cell"])["cell"].to_pylist()
    meshes = meshes_of_interest(criteria, cells)
    if not meshes.size:
        raise click.UsageError(
            "there is no mesh to load: set criteria.file in the settings, or wait for "
            "the first message of a node"
        )
    return AnalysisImporter(
        tables, settings.keep, meshes, time.time(), as_issued, locks
    )


PLOT_SUFFIXES = (".png", ".svg", ".pdf")


def _check_plot_file(
    _context: click.Context, _option: click.Parameter, path: Path
) -> Path:
    if path.suffix.lower() not in PLOT_SUFFIXES:
        suffixes = ", ".join(PLOT_SUFFIXES)
        raise click.BadParameter(f"must end in {suffixes}, got {path.name}")
    return path


@click.command()
@click.argument("kind", type=click.Choice(["snake", "rain", "velocity"]))
@config_option
@click.option("--cell", default="", help="For snake and rain: S2 token of the cell.")
@click.option("--node", default="", help="For velocity: id of the node.")
@click.option("--sensor", default="", help="For velocity: name of its extensometer.")
@click.option(
    "--until",
    type=click.DateTime(["%Y-%m-%dT%H:%M%z", "%Y-%m-%dT%H:%M:%S%z"]),
    help="End of the plot, such as 2026-07-01T09:00+09:00; the newest by default.",
)
@click.option(
    "--hours",
    type=click.FloatRange(1, 24 * 366),
    default=72.0,
    show_default=True,
    help="Length of the plot before its end.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    callback=_check_plot_file,
    required=True,
    help="File to write: .png, .svg or .pdf.",
)
def plot(  # noqa: PLR0913 - click gives each option by name
    kind: str,
    *,
    config_path: Path,
    cell: str,
    node: str,
    sensor: str,
    until: datetime | None,
    hours: float,
    out: Path,
) -> None:
    """Draw the snake line of a cell, its rain and level, or an inverse velocity."""
    velocity_options = {"--node": node, "--sensor": sensor}
    needed = velocity_options if kind == "velocity" else {"--cell": cell}
    missing = [name for name, value in needed.items() if not value]
    if missing:
        raise click.UsageError(f"{kind} needs {' and '.join(missing)}")
    settings = read_settings(config_path)
    from backend_spark import plots  # noqa: PLC0415 - matplotlib is slow

    with usage_errors(PlotError):
        figure = plots.draw_chart(
            settings, kind, plots.ChartSubject(cell, node, sensor, until, hours)
        )
    with writing("--out", out):
        figure.savefig(out, dpi=120)


@click.command()
@config_option
@click.argument("target")
def backup(config_path: Path, target: str) -> None:
    """Write a backup of log, tables and console to TARGET; nothing has to stop.

    TARGET is a new folder, or a new prefix of an object store by its URL.
    """
    section = read_settings(config_path).backend
    from backend_spark.exports.backup import write_backup  # noqa: PLC0415 - delta-rs is slow
    from backend_spark.tables.store import parse_folder  # noqa: PLC0415 - the same

    click.echo(write_backup(section, parse_folder(target), datetime.now(UTC)))


@click.command()
@config_option
@click.argument("source")
def restore(config_path: Path, source: str) -> None:
    """Restore the backup at SOURCE to the empty places of the settings.

    SOURCE is a folder, or a prefix of an object store by its URL. No program of the
    backend may run. Each file and the number of rows are checked.
    """
    section = read_settings(config_path).backend
    from backend_spark.exports.backup import restore_backup  # noqa: PLC0415 - delta-rs is slow
    from backend_spark.tables.store import parse_folder  # noqa: PLC0415 - the same

    click.echo(restore_backup(section, parse_folder(source)))


def _check_name(_context: click.Context, option: click.Parameter, text: str) -> str:
    if re.fullmatch(r"[a-z_][a-z0-9_-]{0,62}", text) is None:
        rule = "must be up to 63 of a-z, 0-9, _ and -, and begin with a letter"
        raise click.BadParameter(f"{rule}, got {text!r}", param=option)
    return text


@click.command()
@config_option
@click.option(
    "--service",
    required=True,
    callback=_check_name,
    help="Service of libpq (pg_service.conf): database, role and credentials.",
)
@click.option(
    "--schema",
    default="yamamori",
    show_default=True,
    callback=_check_name,
    help="Schema of the database; no other may write to it.",
)
@click.option(
    "--history-days",
    type=click.IntRange(min=1),
    help="Days of levels before the newest one to keep; all by default.",
)
def postgis(
    config_path: Path, service: str, schema: str, history_days: int | None
) -> None:
    """Bring a copy of the levels in a PostGIS database up to the tables, then end.

    Repeat it by a timer. Each pass is one transaction. The status is 75 if the database
    does not answer: the next pass continues.
    """
    settings = read_settings(config_path)
    # A password must not go to a server that did not prove its name.
    os.environ.setdefault("PGSSLMODE", "verify-full")
    try:
        from backend_spark.postgis import (  # noqa: PLC0415 - delta-rs is slow
            PostgisCopy,
            sync_postgis,
        )
    except ModuleNotFoundError as error:
        remedy = 'install with: pip install "yamamori[backend,postgis]"'
        raise click.ClickException(f"postgis needs {error.name}; {remedy}") from error
    from backend_spark.tables.store import tables_folder  # noqa: PLC0415 - the same

    copy = PostgisCopy(
        tables_folder(settings.backend),
        service,
        schema,
        settings.score.hold_s,
        history_days,
    )
    click.echo(sync_postgis(copy))


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
def check_pack(pack: Path) -> None:
    """Check a pack as the console does, and show what it holds."""
    from backend_spark.tile_packs import open_pack  # noqa: PLC0415 - pmtiles

    info = open_pack(pack).info
    click.echo(f"format\t{info.format}")
    click.echo(f"zooms\t{info.min_zoom} to {info.max_zoom}")
    click.echo(f"bounds\t{', '.join(f'{side:g}' for side in info.bounds)}")
    click.echo(f"attribution\t{info.attribution or '-'}")
    for layer in info.layers:
        click.echo(f"layer\t{layer}")
