"""Prints and stores what each test measured: ``summary.py LINES OUT STATUS``."""

import json
import sys
from pathlib import Path


def main(lines: str, out: str, status: str) -> None:
    """Read one JSON object per line, write them all to `out`, and print the numbers."""
    text = Path(lines).read_text(encoding="utf-8")
    parts = [json.loads(line) for line in text.splitlines()]
    result = {"passed": status == "0", "parts": parts}
    Path(out).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for part in parts:
        _print("", part.pop("part"))
        for name, value in part.items():
            _print(f"  {name:<16} {_format(value)}")
    _print(
        "", f"{'all passed' if status == '0' else 'FAILED'}; the numbers are in {out}"
    )


def _print(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")


def _format(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_format(number)}" for name, number in value.items())
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main(*sys.argv[1:])
