"""Prints the page of the programs from the table that scripts/setup reads."""

from collections.abc import Iterator
from pathlib import Path

TABLE = Path(__file__).parents[1] / "service_runtime/programs.txt"
HEAD = """# Programs of Debian

What the product, its tests and these pages call, made from
`service_runtime/programs.txt` by `scripts/write-reference`. `make setup` installs what
*develop* needs and `make demo` what *demo* needs. The packages for
[a node, a gateway and a backend](../how-to/install-packages.md) depend on theirs, and
the commands `check` look for them. What is in every Debian is left out.

| package | for | programs |
|---|---|---|"""


def rows() -> Iterator[tuple[str, list[str], list[str]]]:
    """Package, uses and programs of each line of the table."""
    for line in TABLE.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            package, uses, *programs = line.split()
            yield package, uses.split(","), programs


def page() -> Iterator[str]:
    """Lines of the page."""
    yield HEAD
    for package, uses, programs in rows():
        if "debian" not in uses:
            names = ", ".join(f"`{name}`" for name in programs)
            yield f"| `{package}` | {', '.join(uses)} | {names} |"


if __name__ == "__main__":
    print("\n".join(page()))  # noqa: T201 - a page for a file
