"""Options shared by the commands of ``backend-spark``."""

from pathlib import Path

import click

config_option = click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    required=True,
    help="Settings file (TOML).",
)
