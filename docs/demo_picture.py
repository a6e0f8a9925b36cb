"""``make demo | .venv/bin/python -m docs.demo_picture > docs/images/demo.svg``.

What the demo prints, as a picture of a terminal.
"""

import io
import re
import sys
from collections.abc import Iterable
from typing import Final

from rich.console import Console
from rich.text import Text

COLUMNS: Final = 120
LEFT_OUT: Final = ("logs and data:", "console:", "setup:")
"""Lines with paths, addresses and a password of the machine."""

_WEB_FONTS: Final = re.compile(r"@font-face\s*\{.*?\}\s*", re.DOTALL)


def draw_terminal(lines: Iterable[str]) -> str:
    """An SVG of a terminal that shows some lines; long ones are cut.

    The fonts are those of the reader's machine: a page of the docs loads nothing from
    another site.
    """
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    for line in lines:
        if not line.startswith(LEFT_OUT):
            text = Text(line.rstrip("\n"))
            console.print(text, no_wrap=True, overflow="ellipsis")
    return _WEB_FONTS.sub("", console.export_svg(title="make demo", unique_id="demo"))


if __name__ == "__main__":
    sys.stdout.write(draw_terminal(sys.stdin))
