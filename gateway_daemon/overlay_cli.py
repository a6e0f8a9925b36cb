"""``gateway-daemon overlay``: what the overlay among gateways would cost."""

import json
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from gateway_daemon.overlay.errors import OverlayError
from spatial_mqtt.priority import LADDER

EXIT_FAILED, EXIT_USAGE = 1, 64

METHODS = ("sg", "psg", "atm", "patm", "v3", "v6", "policy")
PATTERNS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta")

HEAD = ("pattern", "method", "pri", "hops", "p99", "messages", "each", "widest",
        "ms by hops", "ms", "p99 ms", "least ms")  # fmt: skip


@click.group(name="overlay")
def overlay_commands() -> None:
    """Simulate the overlay among gateways."""


@overlay_commands.command()
@click.option("--method", "methods", multiple=True, type=click.Choice(METHODS))
@click.option("--pattern", "patterns", multiple=True, type=click.Choice(PATTERNS))
@click.option("--nodes", default=10_000, show_default=True, help="Of the overlay.")
@click.option(
    "--priority",
    "priorities",
    multiple=True,
    type=click.IntRange(1, LADDER.top),
    default=(LADDER.top,),
    show_default=True,
)
@click.option("--trials", default=30, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "is_json", is_flag=True, help="JSON instead of a table.")
def simulate(
    methods: Sequence[str],
    patterns: Sequence[str],
    priorities: Sequence[int],
    is_json: bool,
    **chosen: int,
) -> None:
    """Publish into topics of the thesis' sizes, in overlays at rest.

    Without --method and --pattern it runs all of them; both may be repeated.
    """
    try:
        # A gateway has no numpy, and needs none to run.
        from gateway_daemon.overlay.simulation.means import results  # noqa: PLC0415
    except ImportError as error:
        _fail(str(error), EXIT_FAILED)
    told: list[dict[str, Any]] = []
    for pattern in patterns or PATTERNS:
        try:
            told += results(pattern, methods or METHODS, priorities, **chosen)
        except OverlayError as error:
            _fail(str(error), EXIT_USAGE)
    click.echo(json.dumps(told) if is_json else _table(told))


def _table(told: Sequence[dict[str, Any]]) -> str:
    widths = [max(len(head), 8) for head in HEAD]
    rows = [HEAD, *(tuple(_text(v) for v in _cells(row)) for row in told)]
    return "\n".join(
        "  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows
    )


def _cells(row: dict[str, Any]) -> list[Any]:
    return [
        value for name, value in row.items() if name not in {"nodes", "trials", "seed"}
    ]


def _text(cell: float | str) -> str:
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)


def _fail(words: str, code: int) -> NoReturn:
    click.echo(f"gateway-daemon: {words}", err=True)
    raise SystemExit(code)
