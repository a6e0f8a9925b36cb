"""Command groups that import each command on first use.

Importing every command of a program takes seconds on a Raspberry Pi.
"""

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

SOURCE_TREE: Final = Path(__file__).parents[1]
STUDIES: Final = "experiments"
"""Package of research code that only the source tree contains."""


class LazyGroup(click.Group):
    """Group of commands that are imported on demand.

    Args:
        modules: Module and name in it, by command. A command of `STUDIES` is listed
            only where the source tree is present.
        settings: Settings of `click.Group`.
    """

    def __init__(
        self,
        *,
        modules: Mapping[str, tuple[str, str]],
        **settings: Any,  # noqa: ANN401 - those of click
    ) -> None:
        super().__init__(**settings)
        has_studies = (SOURCE_TREE / STUDIES).is_dir()
        self._modules = {
            command: place
            for command, place in modules.items()
            if has_studies or not place[0].startswith(STUDIES)
        }

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands, without importing them."""
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None when there is none of that name."""
        if cmd_name not in self._modules:
            return None
        module, name = self._modules[cmd_name]
        if module.startswith(STUDIES) and str(SOURCE_TREE) not in sys.path:
            sys.path.append(str(SOURCE_TREE))
        command: click.Command = getattr(import_module(module), name)
        return command
