"""``edge-agent status``: what the running agent last said of itself."""

import json
from pathlib import Path
from typing import Any

import click

from edge_agent.clock import SystemClock
from edge_agent.status import load

EXIT_NOT_WELL = 1
STALE_S = 60.0
RUNTIME = "/run/edge-agent"


@click.command("status")
@click.option(
    "--run", "folder", type=click.Path(path_type=Path), default=RUNTIME,
    show_default=True, help="The agent's folder under /run.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def status_command(folder: Path, as_json: bool) -> None:
    """Say what the running agent does: link, queue and sensors.

    Ends with 0 when a gateway takes messages, every sensor reads, every loop
    lives and no setting is wrong; else with 1.
    """
    try:
        told = load(folder)
    except OSError as error:
        words = f"no agent tells in {folder}: {error.strerror}; is edge-agent started?"
        click.echo(f"edge-agent: {words}", err=True)
        raise SystemExit(EXIT_NOT_WELL) from error
    age_s = SystemClock().mono_s() - told["mono_s"]
    if as_json:
        click.echo(json.dumps({**told, "age_s": round(age_s, 1)}, ensure_ascii=False))
    else:
        _show(told, age_s)
    raise SystemExit(0 if _is_well(told, age_s) else EXIT_NOT_WELL)


def _show(told: dict[str, Any], age_s: float) -> None:
    click.echo(f"level {told['level']}; {told['line']}")
    for name, words in told["alarms"].items():
        click.echo(f"  alarm {name}: {words}")
    if told["refused"] is not None:
        click.echo(f"  NOTICE REFUSED: {told['refused']}")
    if told.get("update") is not None:
        click.echo(f"  update {told['update']}")
    for words in told["mistakes"]:
        click.echo(f"  SETTINGS: {words}")
    for name, words in told["problems"].items():
        click.echo(f"  {name}: {words}")
    for words in told["silent"]:
        click.echo(f"  HANGS: {words}")
    late = ": the agent hangs or is gone" if age_s > STALE_S else ""
    click.echo(f"  {age_s:.0f} s ago{late}")


def _is_well(told: dict[str, Any], age_s: float) -> bool:
    is_linked = told["is_up"] and told["is_served"]
    is_sick = told["problems"] or told["silent"] or told["mistakes"]
    return is_linked and not (is_sick or age_s > STALE_S)
