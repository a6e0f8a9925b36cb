"""Command groups that import each command on first use."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from service_runtime.cli import LazyGroup

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


def test_daemons_import_cryptography_only_for_keys_and_certificates() -> None:
    """It takes 10 MB, which is much of what a gateway may have."""
    code = (
        "import sys, gateway_daemon.cli.run, edge_agent.app\n"
        "print({'cryptography', 'pandas', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )

    assert done.stdout == "set()\n", done.stderr


def test_missing_library_is_named_with_the_extra_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel without the extra has every program, but not the libraries of each."""
    (tmp_path / "needs_much.py").write_text("import not_installed_here\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    group = LazyGroup(
        name="x", places={"run": ("needs_much:run", "Run.")}, extra="backend"
    )
    done = CliRunner().invoke(group, ["run"], prog_name="backend-spark")

    assert done.exit_code == 1
    assert done.output == (
        "Error: backend-spark run needs not_installed_here; "
        'install with: pip install "yamamori[backend]"\n'
    )


def test_command_is_imported_when_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one_command.py").write_text(
        "import click\n@click.command()\ndef run() -> None:\n    click.echo('ran')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    group = LazyGroup(
        name="x", places={"run": ("one_command:run", "Run.")}, extra="edge"
    )

    assert "one_command" not in sys.modules
    assert CliRunner().invoke(group, ["run"]).output == "ran\n"


@pytest.mark.parametrize(
    ("program", "typed", "meant"),
    [
        ("edge_agent", "chek", "check"),
        ("gateway_daemon", "manger", "manager"),
        ("backend_spark", "ingst", "ingest"),
    ],
)
def test_mistyped_command_names_the_similar_one(
    program: str, typed: str, meant: str
) -> None:
    """As groups that are not lazy do, and also with click 8.1."""
    result = CliRunner().invoke(import_module(f"{program}.cli").cli, [typed])

    assert result.exit_code == 2
    assert f"No such command '{typed}'. Did you mean '{meant}'" in result.output


@pytest.mark.parametrize(
    ("program", "command"),
    [
        ("edge_agent", ("check",)),
        ("gateway_daemon", ("check",)),
        ("backend_spark", ("sql", "select 1")),
    ],
)
@pytest.mark.parametrize(
    ("name", "got"),
    [("lost.toml", "No such file or directory"), ("", "Is a directory")],
)
def test_path_without_a_settings_file_is_named_with_a_remedy(
    program: str, command: tuple[str, ...], name: str, got: str, tmp_path: Path
) -> None:
    """Field, rule, value and remedy, without the number of the error."""
    path = str(tmp_path / name)
    words = [sys.executable, "-m", program, *command, "--config", path]
    done = subprocess.run(words, capture_output=True, text=True, check=False)

    assert done.returncode == 78
    rule = f"{path} must be a file, got: {got}; check its path and name"
    assert done.stderr.partition(": ")[2].strip() == rule
