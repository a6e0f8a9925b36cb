"""The libraries of a node and nothing else, out of an environment that has more.

Some libraries import others only if they are there: sqlite-utils takes pandas, which
no node has, and weighs 80 MB more.
"""

from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

PROGRAM = "yamamori"
EXTRA = "edge"


def link_edge_libraries(folder: Path) -> list[str]:
    """Fill a folder for PYTHONPATH with what ``yamamori[edge]`` needs.

    Args:
        folder: Is made.

    Returns:
        Names of the distributions.
    """
    folder.mkdir()
    found: dict[str, Distribution] = {}
    todo = list(_needs(distribution(PROGRAM), EXTRA))
    while todo:
        name, extras = todo.pop()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # a marker that is only true elsewhere
        todo += [need for extra in ("", *extras) for need in _needs(found[name], extra)]
    for each in found.values():
        for top in {
            file.parts[0] for file in each.files or () if ".." not in file.parts
        }:
            source = Path(str(each.locate_file(top)))
            if source.exists() and not (folder / top).exists():
                (folder / top).symlink_to(source)
    return sorted(found)


def _needs(of: Distribution, extra: str) -> Iterator[tuple[str, set[str]]]:
    for line in of.requires or ():
        need = Requirement(line)
        if need.marker is None or need.marker.evaluate({"extra": extra}):
            yield need.name.lower(), need.extras
