"""Selects from the lock file what one role requires on an arm64 machine, with hashes.

Usage: wanted.py EXTRA... > requirements.txt
"""

import re
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
TARGET = {
    "python_version": "3.11",
    "python_full_version": "3.11.2",
    "sys_platform": "linux",
    "platform_machine": "aarch64",
    "platform_python_implementation": "CPython",
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_system": "Linux",
}
NATIVE = frozenset({"lgpio"})
"""Not installed on the build machine; has no requirements."""

UNUSED = frozenset({"pip", "setuptools"})
"""sqlite-utils requires pip for a command that cannot work on a read-only root;
colorzero requires setuptools without importing it."""


def blocks() -> dict[str, str]:
    """Return the blocks of the lock file, by name of the distribution."""
    text = (ROOT / "requirements.lock").read_text()
    found = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    return {canonicalize_name(b.partition("==")[0]): b for b in found}


def closure(extras: list[str]) -> set[str]:
    """Return the names of all that ``yamamori[extras]`` requires on the target."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    todo = list(project["dependencies"])
    for extra in extras:
        todo += project["optional-dependencies"][extra]
    names: set[str] = set()
    while todo:
        requirement = Requirement(todo.pop())
        name = canonicalize_name(requirement.name)
        if name in names | UNUSED or not _applies(requirement):
            continue
        names.add(name)
        if name not in NATIVE:
            todo += requires(name) or []
    return names


def _applies(requirement: Requirement) -> bool:
    marker = requirement.marker
    return marker is None or marker.evaluate({**TARGET, "extra": ""})


def main() -> None:
    """Print the blocks."""
    locked = blocks()
    for name in sorted(closure(sys.argv[1:])):
        # pip would evaluate the marker for the machine it runs on, not the target.
        print(re.sub(r" ; [^\\\n]*", " ", locked[name], count=1), end="")


if __name__ == "__main__":
    main()
