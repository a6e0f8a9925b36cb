"""Write the man pages of the four programs and of each of their commands.

man_pages.py out/man
"""

import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import click
from click_man.core import write_man_pages

PROGRAMS = {
    "backend-spark": "backend_spark.cli",
    "edge-agent": "edge_agent.cli",
    "gateway-daemon": "gateway_daemon.cli",
    "spatial-mqtt": "spatial_mqtt.__main__",
}


def load_commands(group: click.Group) -> None:
    """Import the commands of a group: click-man reads `click.Group.commands` only."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None:
            group.add_command(command, name)
        if isinstance(command, click.Group):
            load_commands(command)


def main(folder: Path) -> None:
    """Write the pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for program, module in PROGRAMS.items():
        cli = import_module(module).cli
        load_commands(cli)
        write_man_pages(program, cli, version=version("yamamori"), target_dir=folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
