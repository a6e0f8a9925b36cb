"""Selects from the lock file what one role requires on a Debian machine, with hashes.

Usage: wanted.py [--python 3.11] [--machine aarch64] EXTRA... > requirements.txt
"""

import argparse
import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
DEBIAN = {
    "sys_platform": "linux",
    "platform_python_implementation": "CPython",
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_system": "Linux",
}
NATIVE = frozenset({"lgpio", "adafruit-lgpio"})
"""Not installed on the build machine; have no requirements."""

UNUSED = frozenset({"pip", "setuptools"})
"""sqlite-utils requires pip for a command that cannot work on a read-only root;
colorzero requires setuptools without importing it."""


def blocks(target: dict[str, str]) -> dict[str, str]:
    """Return the blocks of the lock file that apply to a target, by distribution."""
    text = (ROOT / "requirements.lock").read_text()
    found = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    return {
        canonicalize_name(block.partition("==")[0]): block
        for block in found
        # A distribution may have several versions, for different Pythons.
        if _applies(Requirement(block.partition("\\")[0].strip()), target)
    }


def closure(extras: list[str], target: dict[str, str]) -> set[str]:
    """Return the names of all that ``yamamori[extras]`` requires on a target."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    todo = list(project["dependencies"])
    for extra in extras:
        todo += project["optional-dependencies"][extra]
    names: set[str] = set()
    while todo:
        requirement = Requirement(todo.pop())
        name = canonicalize_name(requirement.name)
        if name in names | UNUSED or not _applies(requirement, target):
            continue
        names.add(name)
        if name not in NATIVE:
            todo += requires(name) or []
    return names


def _applies(requirement: Requirement, target: dict[str, str]) -> bool:
    marker = requirement.marker
    return marker is None or marker.evaluate({**DEBIAN, **target, "extra": ""})


def main() -> None:
    """Print the blocks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="+")
    parser.add_argument("--python", default="3.11", help="its version, such as 3.11")
    parser.add_argument("--machine", default="aarch64", help="as `uname -m` prints it")
    given = parser.parse_args()
    target = {
        "python_version": given.python,
        "python_full_version": f"{given.python}.2",
        "platform_machine": given.machine,
    }
    locked = blocks(target)
    for name in sorted(closure(given.extras, target)):
        # pip would evaluate the marker for the machine it runs on, not the target.
        print(re.sub(r" ; [^\\\n]*", " ", locked[name], count=1), end="")


if __name__ == "__main__":
    main()
