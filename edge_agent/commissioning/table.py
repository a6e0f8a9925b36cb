"""Looks as lines of text that fit a small screen and a photograph."""

import textwrap
from collections.abc import Iterator, Sequence

from edge_agent.commissioning.look import Look

WIDTH = 96
_HEADS = ("sensor", "reads", "can be", "step", "QC", "wiring", "health")


def table(looks: Sequence[Look]) -> list[str]:
    """One row for each reading, and what is wrong with a sensor below it."""
    rows = {look.name: _rows(look) for look in looks}
    lines = list(grid([_HEADS, *(row for each in rows.values() for row in each)]))
    told = [lines.pop(0)]
    for look in looks:
        told += [lines.pop(0) for _ in rows[look.name]]
        told += problem(look)
    return told


def problem(look: Look) -> list[str]:
    """What is wrong with a sensor, and what to do; nothing for a well one."""
    if look.problem is None:
        return []
    return textwrap.wrap(
        f"!! {look.problem}", WIDTH, initial_indent="   ", subsequent_indent="      "
    )


def grid(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows whose columns stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _rows(look: Look) -> list[tuple[str, ...]]:
    step = "any" if look.largest_step is None else f"{look.largest_step:g}"
    first = look.shown[0] if look.shown else None
    rows: list[tuple[str, ...]] = [
        (
            look.name,
            str(first) if first else "-",
            _range(look),
            step,
            look.flag.name.lower(),
            ", ".join(look.wiring),
            look.health.value,
        )
    ]
    more = look.shown[1:]
    return rows + [("", str(m), "", "", m.flag.name.lower(), "", "") for m in more]


def _range(look: Look) -> str:
    if look.unit is None:
        return "yes, no"
    low, high = ("" if x is None else f"{x:g}" for x in (look.low, look.high))
    return f"{low}..{high} {look.unit}"
