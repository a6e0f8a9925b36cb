"""Command groups that import each command on first use.

Importing every command of a program takes seconds on a Raspberry Pi.
"""

import atexit
import gc
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from service_runtime.lifecycle import explaining_denied

SOURCE_TREE: Final = Path(__file__).parents[1]
DISTRIBUTION: Final = "yamamori"
STUDIES: Final = "experiments"
"""Package of research code that only the source tree contains."""

SETTINGS_FILE: Final = click.Path(path_type=Path, readable=False)
"""Type of an option for a settings file; its reader reports one without rights."""


def run_command_line(program: str, group: click.Group) -> None:
    """Run the command line of a program.

    At the end the system frees all objects at once. Python would go through them first,
    for a quarter of the time of a short command.
    """
    atexit.register(gc.freeze)
    with explaining_denied(program):
        group(prog_name=program)


class LazyGroup(click.Group):
    """Group of commands that are imported on demand.

    Args:
        places: By command, its place as ``module:name`` and its summary, which the
            list of commands shows without an import. A command of `STUDIES` is listed
            only where the source tree is present.
        extra: Extra of the distribution whose libraries the commands import.
        settings: Settings of `click.Group`.
    """

    def __init__(
        self,
        *,
        places: Mapping[str, tuple[str, str]],
        extra: str,
        **settings: Any,  # noqa: ANN401 - those of click
    ) -> None:
        super().__init__(**settings)
        self._extra = extra
        has_studies = (SOURCE_TREE / STUDIES).is_dir()
        self._places = {
            command: (place, summary)
            for command, (place, summary) in places.items()
            if has_studies or not place.startswith(STUDIES)
        }

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands, without importing them."""
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None when there is none of that name.

        Raises:
            click.ClickException: A library of the extra is not installed.
        """
        if cmd_name not in self._places:
            return None
        module, _, name = self._places[cmd_name][0].partition(":")
        if module.startswith(STUDIES) and str(SOURCE_TREE) not in sys.path:
            sys.path.append(str(SOURCE_TREE))
        try:
            with _without_collections():
                command: click.Command = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            program = ctx.find_root().info_name
            raise click.ClickException(
                f"{program} {cmd_name} needs {error.name}; "
                f'install with: pip install "{DISTRIBUTION}[{self._extra}]"'
            ) from error
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of some arguments.

        Raises:
            click.UsageError: There is none of that name; similar names are in the text.
        """
        typed = args[0]
        # click looks for similar names among the commands that are imported: none.
        if typed not in self._places and not ctx.resilient_parsing:
            similar = get_close_matches(typed, self._places)
            if similar:
                meant = " or ".join(repr(name) for name in similar)
                ctx.fail(f"No such command {typed!r}. Did you mean {meant}?")
        return super().resolve_command(ctx, args)

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([
                (command, summary) for command, (_, summary) in self._places.items()
            ])


@contextmanager
def _without_collections() -> Iterator[None]:
    """Collect no garbage during imports: a tenth of their time, and nothing to free."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
