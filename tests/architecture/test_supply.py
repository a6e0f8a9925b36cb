"""The supply chain: locked libraries, the SBOM, no execution of foreign data."""

import ast
import hashlib
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


def iter_nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def called_name(node: ast.AST) -> str:
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def location_of(name: str, path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line} {name}"


def test_no_module_that_executes_serialised_data() -> None:
    """Loading a pickle runs code chosen by the author of its bytes."""
    offenders = []
    for path in SOURCES:
        for node in iter_nodes(path):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            offenders += [
                location_of(name, path, node.lineno)
                for name in names
                if name.partition(".")[0] in RUNS_BYTES
            ]

    assert offenders == []


def test_no_shell_and_no_evaluated_text() -> None:
    """Commands are argument lists; text from outside is never evaluated."""
    offenders = []
    for path in SOURCES:
        for node in iter_nodes(path):
            name = called_name(node)
            is_shell = isinstance(node, ast.Call) and any(
                word.arg == "shell"
                and not (isinstance(word.value, ast.Constant) and not word.value.value)
                for word in node.keywords
            )
            is_code = name in RUNS_TEXT or name in SHELLS
            # Arrow and pandas can read pickles, too.
            is_pickle = name.endswith((".read_pickle", ".load_pickle"))
            if is_shell or is_code or is_pickle:
                offenders.append(location_of(name, path, node.lineno))

    assert offenders == []


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
def test_forbidden_line_is_found(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two tests above can fail."""
    path = tmp_path / "guilty.py"
    path.write_text(line)
    monkeypatch.setitem(globals(), "SOURCES", [path])
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    with pytest.raises(AssertionError, match=r"guilty\.py:1"):
        run_both_checks()


def run_both_checks() -> None:
    test_no_module_that_executes_serialised_data()
    test_no_shell_and_no_evaluated_text()


def test_lock_pins_every_library_with_hashes_and_the_sbom_lists_them(
    tmp_path: Path,
) -> None:
    """The SBOM lists exactly the pinned versions."""
    out = tmp_path / "sbom.json"
    subprocess.run(
        [
            *(sys.executable, ROOT / "scripts" / "sbom.py"),
            *(ROOT / "requirements.lock", out),
        ],
        check=True,
    )
    sbom = json.loads(out.read_text())
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pinned = set(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", lock, re.MULTILINE))
    parts = sbom["components"]

    assert sbom["specVersion"] == "1.6"
    assert {(part["name"], part["version"]) for part in parts} == pinned
    assert all(part["hashes"] for part in parts)
    assert all(part["purl"].startswith("pkg:pypi/") for part in parts)
    known = {part["bom-ref"] for part in parts} | {"yamamori"}
    referenced = {
        name
        for each in sbom["dependencies"]
        for name in (each["ref"], *each.get("dependsOn", ()))
    }
    assert referenced <= known


def test_lock_holds_all_declared_dependencies() -> None:
    """A dependency that is not locked would be installed without a hash check."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [
        *project["dependencies"],
        *(
            name
            for group in project["optional-dependencies"].values()
            for name in group
        ),
    ]
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    locked = set(re.findall(r"^([A-Za-z0-9._-]+)==", lock, re.MULTILINE))
    names = {re.split(r"[<>=;\[ ]", each)[0] for each in declared}

    assert names - locked == set()


def test_sbom_of_a_lock_without_hashes_is_refused(tmp_path: Path) -> None:
    """A library that cannot be verified must not be listed."""
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


def test_provenance_names_files_commit_and_locks(tmp_path: Path) -> None:
    """In-toto and SLSA prescribe the fields; a second run gives the same bytes."""
    built = tmp_path / "a.update"
    built.write_bytes(b"update")
    texts = []
    for name in ("one.json", "two.json"):
        out = tmp_path / name
        subprocess.run(
            [
                *(sys.executable, ROOT / "scripts" / "provenance.py", out, built),
                *("--kind", "image", "--parameter", "role=node"),
                *("--lock", ROOT / "requirements.lock"),
            ],
            check=True,
        )
        texts.append(out.read_text())
    statement = json.loads(texts[0])
    definition = statement["predicate"]["buildDefinition"]
    source, lock = definition["resolvedDependencies"]
    head = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()

    assert texts[0] == texts[1]
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert statement["subject"] == [
        {
            "name": "a.update",
            "digest": {"sha256": hashlib.sha256(b"update").hexdigest()},
        }
    ]
    assert definition["externalParameters"] == {"role": "node"}
    assert source["digest"]["gitCommit"] == head
    locked = (ROOT / "requirements.lock").read_bytes()
    assert lock["digest"]["sha256"] == hashlib.sha256(locked).hexdigest()
