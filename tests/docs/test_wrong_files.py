"""Every file argument of every command rejects a wrong file with a clear message."""

import io
import sys
import tarfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

import backend_spark.cli
import edge_agent.cli
import gateway_daemon.cli
import spatial_mqtt.__main__

PROGRAMS = {
    "edge_agent": edge_agent.cli.cli,
    "gateway_daemon": gateway_daemon.cli.cli,
    "backend_spark": backend_spark.cli.cli,
    "spatial_mqtt": spatial_mqtt.__main__.cli,
}
WRONG = b'[node]\nid = "caf\xe9 \xff\xfe\x00"\n\x80\n'
"""Latin-1 and binary data."""

MANIFEST = b'{"version": "2", "role": "node"}'

FAILED, USAGE, CONFIG = 1, 2, 78
REFUSED = {FAILED, USAGE, 65, 66, CONFIG}

WITH_CONFIG = "--manager mqtt://127.0.0.1:1 --config FILE"
MANAGER = "--manager mqtt://127.0.0.1:1"
COMMANDS = {
    "gateway_daemon admin --config": f"admin {WITH_CONFIG} gateways",
    "gateway_daemon ca --password-file": "ca --folder DIR --password-file FILE list",
    "gateway_daemon ca issue --request":
        "ca --folder DIR/new issue node n --area /1 --request FILE",
    "gateway_daemon ca sign --config": "ca --folder DIR sign --config FILE",
    "gateway_daemon rollout bundle": f"rollout {MANAGER} --key FILE FILE /1",
    "gateway_daemon rollout --key": f"rollout {MANAGER} --key FILE BUNDLE /1",
    "gateway_daemon rollout --config": f"rollout {WITH_CONFIG} --key FILE BUNDLE /1",
    "spatial_mqtt pub --config": f"pub {WITH_CONFIG} --at 33,133 x",
    "spatial_mqtt sub --config": f"sub {WITH_CONFIG} --around 33,133",
    "edge_agent queue purge --config": "queue purge --yes --config FILE",
    "edge_agent queue replay --config": "queue replay --config FILE FILE",
    "edge_agent queue replay file": "queue replay --config NODE FILE",
    "edge_agent triage --config": "triage FILE --config FILE",
    "edge_agent triage readings_csv": "triage FILE --config NODE",
    "edge_agent provision fleet": "provision FILE --out DIR/out",
    "backend_spark console-account add accounts_file":
        "console-account add FILE n --password p",
    "backend_spark console-account lock accounts_file":
        "console-account lock FILE n",
    "backend_spark console-account remove accounts_file":
        "console-account remove FILE n",
    "backend_spark console-account token accounts_file":
        "console-account token FILE n",
    "backend_spark console-account totp accounts_file":
        "console-account totp FILE n",
    "backend_spark export --config": "export --config FILE --format csv",
    "backend_spark export --updates":
        "export --config BACKEND --format cap --updates FILE",
    "backend_spark export --cancels":
        "export --config BACKEND --format cap --cancels FILE",
    "backend_spark forecast load paths": "forecast load --config BACKEND FILE",
    "backend_spark analysis load --soil-water":
        "analysis load --config BACKEND --soil-water FILE",
    "backend_spark analysis load --rain": "analysis load --config BACKEND --rain FILE",
    "backend_spark judge --config": "judge FILE --config FILE",
    "backend_spark places load --config": "places load --config FILE FILE",
    "backend_spark places load file": "places load --config BACKEND FILE",
    "backend_spark plot --config": "plot --config FILE --cell 3 --out DIR/p.png snake",
    "backend_spark postgis --config": "postgis --config FILE --service s",
    "backend_spark backup --config": "backup --config FILE DIR/backup",
    "backend_spark restore --config": "restore --config FILE DIR/backup",
    "backend_spark report --config": "report --config FILE --out DIR/r.html",
    "backend_spark index rain_csv": "index FILE",
    "backend_spark evaluate rain_csv": "evaluate FILE FILE",
    "backend_spark evaluate events_csv": "evaluate FILE FILE",
    "backend_spark evaluate --criteria":
        "evaluate DIR DIR --criteria FILE --cell 50330471",
    "backend_spark map-pack tiles source":
        "map-pack tiles FILE --out DIR/new.mbtiles --attribution a",
    "backend_spark map-pack relief source":
        "map-pack relief FILE --out DIR/new.mbtiles",
    "gateway_daemon topology evaluate topology": "topology evaluate FILE",
}  # fmt: skip
"""Command lines of commands that need more than the file."""

BY_NAME = {"rain_csv", "events_csv", "readings_csv", "topology"}
"""Arguments that may be a file name although their type is not a path."""

NO_INPUTS = {"--out", "--report", "--at", "--from", "--to", "--run", "--folder"}
NO_INPUTS |= {"--credentials", "--calibrate", "--diagram"}
"""Output files and folders."""

PASSES = {"gateway_daemon ca --password-file"}
PASSES |= {
    "gateway_daemon ca issue --request",
    "gateway_daemon ca replace-issuing --root-key",
}
"""A password may be any bytes; these commands fail because of the folder."""


def files_of(command: click.Command, *words: str) -> Iterator[str]:
    for parameter in command.params:
        name = parameter.opts[0]
        is_file = isinstance(parameter.type, (click.Path, click.File))
        if (is_file and name not in NO_INPUTS) or name in BY_NAME:
            yield " ".join((*words, name))
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from files_of(inner, *words, name)


WHERE = [where for name, cli in PROGRAMS.items() for where in files_of(cli, name)]


def command(where: str, folder: Path) -> list[str]:
    program, *words, name = where.split()
    plain = [*words, name, "FILE"] if name.startswith("--") else [*words, "FILE"]
    arguments = COMMANDS.get(where, " ".join(plain)).split()
    paths = {
        "FILE": str(folder / "wrong.toml"),
        "NODE": str(folder / "node.toml"),
        "BACKEND": str(folder / "backend.toml"),
        "BUNDLE": str(folder / "new.update"),
    }
    return [
        program,
        *(paths.get(word, word.replace("DIR", str(folder))) for word in arguments),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wrong file, and valid ones for commands that need both."""
    folder = tmp_path_factory.mktemp("given")
    (folder / "wrong.toml").write_bytes(WRONG)
    (folder / "node.toml").write_text(
        f'[node]\nid = "n"\nlatitude = 33\nlongitude = 133\n'
        f'[uplink]\ngateway = "mqtt://127.0.0.1:1"\n[queue]\npath = "{folder}/q.db"\n'
        '[[sensor]]\nkind = "node"\nname = "box"\n'
    )
    with tarfile.open(folder / "new.update", "w") as tar:
        info = tarfile.TarInfo("manifest.json")
        info.size = len(MANIFEST)
        tar.addfile(info, io.BytesIO(MANIFEST))
    (folder / "backend.toml").write_text(f'[backend]\ndata = "{folder}/data"\n')
    return folder


@pytest.mark.parametrize("where", WHERE)
def test_binary_file_is_rejected_by_name_without_a_traceback(
    where: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The message names the file; wrong settings exit with status 78."""
    program, *arguments = command(where, folder)
    monkeypatch.setattr(sys, "argv", [program, *arguments])
    with pytest.raises(SystemExit, match=r"\d+") as ended:
        import_module(f"{program}.__main__").main()
    output = "".join(capfd.readouterr())

    assert ended.value.code in REFUSED, output
    if where.endswith("--config"):
        assert ended.value.code == CONFIG, output
        assert "must be text in UTF-8, got byte 0xe9 in line 2; save it" in output
    if where not in PASSES:
        assert "wrong.toml" in output or "line" in output, output


def test_every_listed_command_exists() -> None:
    """New commands are tested automatically; `COMMANDS` adds their other arguments."""
    assert set(COMMANDS) <= set(WHERE)
    assert len(WHERE) > 30
