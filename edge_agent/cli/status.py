"""The command ``status``: prints the last status of the running agent."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from edge_agent.cli._options import PROGRAM, json_option
from edge_agent.clock import SystemClock
from edge_agent.status import load_status

EXIT_NOT_OK = 1
STALE_S = 60.0
RUNTIME = "/run/edge-agent"


@click.command("status")
@click.option(
    "--run", "folder", type=click.Path(path_type=Path, readable=False), default=RUNTIME,
    show_default=True, help="The agent's folder under /run.",
)  # fmt: skip
@json_option
def status_command(folder: Path, as_json: bool) -> None:
    """Print the state of the running agent: link, queue and sensors.

    Exits with 0 when a gateway accepts messages, none of another node is in the queue,
    every sensor works, every loop is alive, the disk can be written and no
    setting is wrong; else with 1.
    """
    try:
        status = load_status(folder)
    except OSError as error:
        is_denied = isinstance(error, PermissionError)
        remedy = "run it with sudo" if is_denied else "is edge-agent started?"
        message = f"no status in {folder}: {error.strerror}; {remedy}"
        click.echo(f"{PROGRAM}: {message}", err=True)
        raise SystemExit(EXIT_NOT_OK) from error
    age_s = SystemClock().mono_s() - status["mono_s"]
    if as_json:
        click.echo(json.dumps({**status, "age_s": round(age_s, 1)}, ensure_ascii=False))
    else:
        _show(status, age_s)
    raise SystemExit(0 if _is_ok(status, age_s) else EXIT_NOT_OK)


def _show(status: dict[str, Any], age_s: float) -> None:
    click.echo(status["line"])
    for name, state in status["alarms"].items():
        click.echo(f"  alarm {name}: {state}")
    if status["refused"] is not None:
        click.echo(f"  NOTICE REFUSED: {status['refused']}")
    if status.get("update") is not None:
        click.echo(f"  update {status['update']}")
    for mistake in status["mistakes"]:
        click.echo(f"  SETTINGS: {mistake}")
    for name, problem in status["problems"].items():
        click.echo(f"  {name}: {problem}")
    for loop in status["silent"]:
        click.echo(f"  HANGS: {loop}")
    late = ": the agent hangs or is gone" if age_s > STALE_S else ""
    at = datetime.fromtimestamp(status["at_s"], UTC).astimezone()
    click.echo(f"  {at:%H:%M %Z}, {age_s:.0f} s ago{late}")


def _is_ok(status: dict[str, Any], age_s: float) -> bool:
    is_linked = status["is_up"] and status["is_served"]
    has_problem = status["problems"] or status["silent"] or status["mistakes"]
    has_problem = has_problem or status.get("disk") is not None
    has_problem = has_problem or status.get("withheld", 0) > 0
    return is_linked and not (has_problem or age_s > STALE_S)
