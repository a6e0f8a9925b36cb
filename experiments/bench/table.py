"""Output of results: text tables, verdicts and JSON files."""

import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.bench.site import MOSQUITTO, ROOT


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Format a table, the first column left-aligned, the others right-aligned."""
    cells = [list(head), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def verdict(label: str, value: float | None, bar: float, at_most: bool = True) -> str:
    """Format the comparison of a value with its target."""
    is_met = value is not None and (value <= bar if at_most else value >= bar)
    target = f"{'<=' if at_most else '>='} {bar:g}"
    return f"  {'pass' if is_met else 'FAIL'}  {label}: {_text(value)} ({target})"


def write(folder: Path, name: str, result: Mapping[str, Any]) -> Path:
    """Write a result as JSON, with the versions that produced it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    document = {"made_with": _versions(), **result}
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    return path


def _versions() -> dict[str, str]:
    broker = subprocess.run(
        [MOSQUITTO, "-h"], check=False, capture_output=True, text=True
    )
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    return {
        "commit": commit.stdout.strip(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "broker": (broker.stdout.splitlines() or ["unknown"])[0],
    }


def _text(cell: object) -> str:
    if cell is None:
        return "-"
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)
