"""What the product is made of, and what it never does with foreign bytes."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for package in (
        "service_runtime", "spatial_mqtt", "slope_science", "edge_agent",
        "gateway_daemon",
        "backend_spark", "demo", "experiments", "scripts", "docs",
    )
    for path in (ROOT / package).rglob("*.py")
)  # fmt: skip
RUNS_BYTES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
RUNS_TEXT = {"eval", "exec", "compile", "__import__"}
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}


def nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def called(node: ast.AST) -> str:
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def found_by(name: str, path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line} {name}"


def test_no_module_that_runs_what_it_reads() -> None:
    """Pickle and its like run code of whoever wrote the bytes."""
    guilty = []
    for path in SOURCES:
        for node in nodes(path):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            guilty += [
                found_by(name, path, node.lineno)
                for name in names
                if name.partition(".")[0] in RUNS_BYTES
            ]

    assert guilty == []


def test_no_shell_and_no_text_that_is_run() -> None:
    """A command is a list of words; a text from outside never becomes code."""
    guilty = []
    for path in SOURCES:
        for node in nodes(path):
            name = called(node)
            is_shell = isinstance(node, ast.Call) and any(
                word.arg == "shell"
                and not (isinstance(word.value, ast.Constant) and not word.value.value)
                for word in node.keywords
            )
            is_code = name in RUNS_TEXT or name in SHELLS
            # Arrow and pandas can read pickles, too.
            is_pickle = name.endswith((".read_pickle", ".load_pickle"))
            if is_shell or is_code or is_pickle:
                guilty.append(found_by(name, path, node.lineno))

    assert guilty == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "subprocess.run(x, shell=True)",
        "subprocess.run(x, shell=flag)",
        "os.system(x)",
        "eval(x)",
        "pandas.read_pickle(x)",
    ],
)
def test_such_a_line_would_be_found(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two tests above can fail."""
    path = tmp_path / "guilty.py"
    path.write_text(line)
    monkeypatch.setitem(globals(), "SOURCES", [path])
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    with pytest.raises(AssertionError, match=r"guilty\.py:1"):
        both()


def both() -> None:
    test_no_module_that_runs_what_it_reads()
    test_no_shell_and_no_text_that_is_run()


def test_lock_pins_every_library_with_hashes_and_the_bill_lists_them(
    tmp_path: Path,
) -> None:
    """What is installed is what was looked at."""
    out = tmp_path / "sbom.json"
    subprocess.run(
        [
            *(sys.executable, ROOT / "scripts" / "sbom.py"),
            *(ROOT / "requirements.lock", out),
        ],
        check=True,
    )
    bill = json.loads(out.read_text())
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pinned = set(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", lock, re.MULTILINE))
    parts = bill["components"]

    assert bill["specVersion"] == "1.6"
    assert {(part["name"], part["version"]) for part in parts} == pinned
    assert all(part["hashes"] for part in parts)
    assert all(part["purl"].startswith("pkg:pypi/") for part in parts)
    known = {part["bom-ref"] for part in parts} | {"yamamori"}
    asked = {
        name
        for each in bill["dependencies"]
        for name in (each["ref"], *each.get("dependsOn", ()))
    }
    assert asked <= known


def test_lock_holds_what_the_project_asks_for() -> None:
    """A library that is asked for and not locked would come unlooked at."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(
            name
            for group in project["optional-dependencies"].values()
            for name in group
        ),
    ]
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    locked = set(re.findall(r"^([A-Za-z0-9._-]+)==", lock, re.MULTILINE))
    names = {re.split(r"[<>=;\[ ]", each)[0] for each in wanted}

    assert names - locked == set()


def test_lock_without_a_hash_makes_no_bill(tmp_path: Path) -> None:
    """What cannot be checked is not listed as if it could."""
    lock = tmp_path / "lock"
    lock.write_text("click==8.1.0\n    # via yamamori (pyproject.toml)\n")
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "sbom.py", lock, tmp_path / "out"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode != 0
    assert "click must have a hash in the lock" in done.stderr
