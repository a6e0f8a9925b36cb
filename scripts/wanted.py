"""Selects from the lock file what some extras require, with hashes.

Usage: wanted.py [--python 3.11 --machine aarch64] EXTRA... > requirements.txt

Uses the standard library only, except for a target: setup runs it before anything is
installed.
"""

import argparse
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEBIAN = {
    "sys_platform": "linux",
    "platform_python_implementation": "CPython",
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_system": "Linux",
}
UNUSED = frozenset({"pip", "setuptools"})
"""sqlite-utils requires pip for a command that cannot work on a read-only root;
colorzero requires setuptools without importing it."""


def locked() -> list[str]:
    """Return the blocks of the lock file; some distributions have several."""
    text = (ROOT / "requirements.lock").read_text()
    return re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]


def closure(extras: list[str]) -> set[str]:
    """Return the names of all that ``yamamori[extras]`` requires on any machine.

    The lock names after each distribution those that require it.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    todo = [_name(requirement) for requirement in project["dependencies"]]
    for extra in extras:
        todo += map(_name, project["optional-dependencies"][extra])
    required: dict[str, set[str]] = {}
    for block in locked():
        for parent in block.partition("# via")[2].replace("#", "").split():
            required.setdefault(parent, set()).add(_name(block))
    direct, names = set(todo), set()
    while todo:
        name = todo.pop()
        if name not in names and (name not in UNUSED or name in direct):
            names.add(name)
            todo += required.get(name, ())
    return names


def wanted(extras: list[str], target: dict[str, str] | None = None) -> dict[str, str]:
    """Return the blocks to install, by name.

    Args:
        extras: Of our own distribution.
        target: Values of markers on another machine; by default pip evaluates them.
    """
    names = closure(extras)
    found: dict[str, str] = {}
    for block in locked():
        if _name(block) not in names:
            continue
        if target is None:
            found[_name(block)] = found.get(_name(block), "") + block
        elif _applies(block, target):
            # pip would evaluate the marker for the machine it runs on.
            found[_name(block)] = re.sub(r" ; [^\\\n]*", " ", block, count=1)
    return found


def _name(requirement: str) -> str:
    """Return the canonical name with which a requirement begins."""
    name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def _applies(block: str, target: dict[str, str]) -> bool:
    from packaging.requirements import Requirement  # noqa: PLC0415 - see the top

    marker = Requirement(block.partition("\\")[0].strip()).marker
    return marker is None or marker.evaluate({**DEBIAN, **target, "extra": ""})


def main() -> None:
    """Print the blocks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="+")
    parser.add_argument("--python", help="its version on a target, such as 3.11")
    parser.add_argument("--machine", default="aarch64", help="as `uname -m` prints it")
    given = parser.parse_args()
    target = given.python and {
        "python_version": given.python,
        "python_full_version": f"{given.python}.2",
        "platform_machine": given.machine,
    }
    sys.stdout.writelines(
        block for _, block in sorted(wanted(given.extras, target).items())
    )


if __name__ == "__main__":
    main()
