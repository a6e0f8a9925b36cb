"""``backend-spark export``."""

from datetime import datetime
from pathlib import Path

import click

from backend_spark.cli_options import config_option
from backend_spark.config import load
from backend_spark.errors import ExportError


def _moment(
    _context: click.Context, option: click.Parameter, text: str | None
) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise click.BadParameter(
            "must be ISO 8601 with a zone, such as 2026-07-01T09:00+09:00, "
            f"got {text!r}",
            param=option,
        )
    return moment


@click.command()
@config_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["cap", "csv", "geojson", "parquet", "sensorthings"]),
    required=True,
    help="cap and geojson: levels at one moment. csv and parquet: rows of a table. "
    "sensorthings: readings.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Instead of the screen.")
@click.option(
    "--table",
    default="levels",
    show_default=True,
    help="For csv and parquet.",
)
@click.option("--at", callback=_moment, help="The moment; the newest by default.")
@click.option("--from", "begin", callback=_moment, help="Rows from this moment on.")
@click.option("--to", "end", callback=_moment, help="Rows before this moment.")
@click.option("--sender", help="For cap: name without blanks, such as an address.")
@click.option("--sender-name", default="", help="For cap: the same for people.")
@click.option(
    "--status",
    type=click.Choice(["Draft", "Exercise", "Test"]),
    default="Draft",
    show_default=True,
    help="For cap; making it an actual one is the operator's.",
)
@click.option(
    "--min-level",
    type=click.IntRange(1, 5),
    default=2,
    show_default=True,
    help="For cap: lower levels are not mentioned.",
)
@click.option(
    "--updates",
    "updated",
    type=click.Path(path_type=Path),
    multiple=True,
    help="For cap: a message sent before, which this one takes the place of.",
)
@click.option(
    "--cancels",
    "cancelled",
    type=click.Path(path_type=Path),
    multiple=True,
    help="For cap: a message sent before, which is taken back.",
)
def export(config_path: Path, form: str, out: Path | None, **more: object) -> None:
    """Write levels, readings or a table for other people's programs."""
    settings = load(config_path)
    from backend_spark.exports.export import run  # noqa: PLC0415 - pyarrow

    try:
        run(settings.backend.data, form, out, more)
    except ExportError as error:
        raise click.UsageError(str(error)) from error
