"""Selection of a node's libraries from an environment that has more installed.

Some libraries import optional ones if they are installed: with pandas, which no node
has, sqlite-utils needs 80 MB more memory.
"""

from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

PROGRAM = "yamamori"
EXTRA = "edge"


def link_edge_libraries(folder: Path) -> list[str]:
    """Create a folder for PYTHONPATH with links to what ``yamamori[edge]`` requires.

    Args:
        folder: Folder to create.

    Returns:
        Names of the distributions.
    """
    folder.mkdir()
    found: dict[str, Distribution] = {}
    todo = list(_requirements(distribution(PROGRAM), EXTRA))
    while todo:
        name, extras = todo.pop()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # not installed on this platform
        todo += [
            requirement
            for extra in ("", *extras)
            for requirement in _requirements(found[name], extra)
        ]
    for each in found.values():
        for top in {
            file.parts[0] for file in each.files or () if ".." not in file.parts
        }:
            source = Path(str(each.locate_file(top)))
            if source.exists() and not (folder / top).exists():
                (folder / top).symlink_to(source)
    return sorted(found)


def _requirements(library: Distribution, extra: str) -> Iterator[tuple[str, set[str]]]:
    for line in library.requires or ():
        required = Requirement(line)
        if required.marker is None or required.marker.evaluate({"extra": extra}):
            yield required.name.lower(), required.extras
