"""Prints what each part measured, and keeps it: ``summary.py LINES OUT STATUS``."""

import json
import sys
from pathlib import Path


def main(lines: str, out: str, status: str) -> None:
    """Read one JSON object a line; write them all, and print their numbers."""
    text = Path(lines).read_text(encoding="utf-8")
    parts = [json.loads(line) for line in text.splitlines()]
    told = {"passed": status == "0", "parts": parts}
    Path(out).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    for part in parts:
        _say("", part.pop("part"))
        for name, value in part.items():
            _say(f"  {name:<16} {_words(value)}")
    _say("", f"{'all passed' if status == '0' else 'FAILED'}; the numbers are in {out}")


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")


def _words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_words(number)}" for name, number in value.items())
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main(*sys.argv[1:])
