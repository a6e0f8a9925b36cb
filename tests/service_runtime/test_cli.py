"""Command groups that import each command on first use."""

import subprocess
import sys
from importlib import import_module

import pytest

PROGRAMS = ["edge_agent", "gateway_daemon", "backend_spark"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_summaries_are_those_of_the_commands(program: str) -> None:
    """`--help` of the program and of its command must say the same."""
    commands = import_module(f"{program}.cli").COMMANDS

    for place, summary in commands.values():
        module, _, name = place.partition(":")
        command = getattr(import_module(module), name)
        assert summary == command.get_short_help_str(limit=500), place


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_list_of_commands_imports_none_of_them(program: str) -> None:
    """On a small Raspberry Pi, importing all took seconds."""
    code = (
        f"import sys; from {program}.cli import cli, COMMANDS\n"
        "cli(['--help'], standalone_mode=False)\n"
        "print({place.partition(':')[0] for place, _ in COMMANDS.values()}"
        " & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )

    assert done.stdout.endswith("set()\n"), done.stderr
    for command in import_module(f"{program}.cli").COMMANDS:
        assert f"  {command} " in done.stdout
