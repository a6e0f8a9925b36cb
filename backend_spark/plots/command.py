"""``backend-spark plot``."""

from datetime import datetime
from pathlib import Path

import click

from backend_spark.cli_options import config_option
from backend_spark.config import load
from backend_spark.errors import PlotError

SUFFIXES = (".png", ".svg", ".pdf")


def _file(_context: click.Context, _option: click.Parameter, path: Path) -> Path:
    if path.suffix.lower() not in SUFFIXES:
        raise click.BadParameter(f"must end in {', '.join(SUFFIXES)}, got {path.name}")
    return path


@click.command()
@click.argument("kind", type=click.Choice(["snake", "rain", "velocity"]))
@config_option
@click.option("--cell", default="", help="For snake and rain: S2 token of the cell.")
@click.option("--node", default="", help="For velocity: the node.")
@click.option("--sensor", default="", help="For velocity: its extensometer.")
@click.option(
    "--until",
    type=click.DateTime(["%Y-%m-%dT%H:%M%z", "%Y-%m-%dT%H:%M:%S%z"]),
    help="The last moment, such as 2026-07-01T09:00+09:00; the newest by default.",
)
@click.option(
    "--hours",
    type=click.FloatRange(1, 24 * 366),
    default=72.0,
    show_default=True,
    help="How much of the past.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    callback=_file,
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
    wanted = {"--node": node, "--sensor": sensor}
    wanted = wanted if kind == "velocity" else {"--cell": cell}
    missing = [name for name, given in wanted.items() if not given]
    if missing:
        raise click.UsageError(f"{kind} needs {' and '.join(missing)}")
    settings = load(config_path)
    from backend_spark.plots.draw import Subject, draw  # noqa: PLC0415 - matplotlib

    try:
        figure = draw(settings, kind, Subject(cell, node, sensor, until, hours))
    except PlotError as error:
        raise click.UsageError(str(error)) from error
    figure.savefig(out, dpi=120)
