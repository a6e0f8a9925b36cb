"""Command ``analysis``: JMA's analysed rain and soil water index."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backend_spark.cli import config_option
from backend_spark.config import TABLES_FOLDER, BackendSettings, read_settings
from service_runtime.lifecycle import EXIT_USAGE_DATA

if TYPE_CHECKING:
    from backend_spark.analysed_rain.table import AnalysisImporter


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
    from backend_spark.analysed_rain.files import Product  # noqa: PLC0415 - numpy

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
    has_failed = False
    loader = _importer(settings, as_issued=as_issued)
    for result in loader.import_folders(folders):
        is_error = isinstance(result, ValueError)
        has_failed = has_failed or is_error
        click.echo(str(result), err=is_error)
    if has_failed:
        sys.exit(EXIT_USAGE_DATA)


def _importer(settings: BackendSettings, *, as_issued: bool) -> "AnalysisImporter":
    from backend_spark.analysed_rain.cells import meshes_of_interest  # noqa: PLC0415
    from backend_spark.analysed_rain.table import AnalysisImporter  # noqa: PLC0415
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
