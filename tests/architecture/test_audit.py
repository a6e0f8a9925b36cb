"""The lock against advisories: what is named, what is not, and what is no answer."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LOCK = """jinja2==3.1.2 \\
    --hash=sha256:00
    # via fastapi
ruamel-yaml==0.18.0 \\
    --hash=sha256:00
"""


def record(name: str, *events: dict[str, str], **more: object) -> dict[str, Any]:
    """An advisory of one library."""
    part = {
        "package": {"ecosystem": "PyPI", "name": name},
        "ranges": [{"type": "ECOSYSTEM", "events": list(events)}],
        "versions": more.pop("versions", ()),
    }
    return {"id": "GHSA-x", "summary": "a hole", "affected": [part], **more}


def run(folder: Path, *told: object) -> subprocess.CompletedProcess[str]:
    """The audit of `LOCK_FILE` against some records."""
    place = folder / "osv"
    place.mkdir()
    for number, each in enumerate(told):
        (place / f"{number}.json").write_text(json.dumps(each))
    return audit(folder, place)


def audit(folder: Path, place: Path) -> subprocess.CompletedProcess[str]:
    lock = folder / "lock"
    lock.write_text(LOCK)
    command = [sys.executable, str(ROOT / "scripts" / "audit.py"), str(lock)]
    return subprocess.run(
        [*command, str(place)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("told", "is_named"),
    [
        (record("Jinja2", {"introduced": "0"}, {"fixed": "3.1.3"}), True),
        (record("jinja2", {"introduced": "0"}, {"fixed": "3.1.2"}), False),
        (record("jinja2", {"introduced": "3.1.3"}), False),
        (record("jinja2", {"introduced": "0"}, {"last_affected": "3.1.2"}), True),
        (record("jinja2", {"introduced": "0"}, {"last_affected": "3.1.1"}), False),
        (
            record(
                "jinja2", {"introduced": "0"}, {"fixed": "2"}, {"introduced": "3.1"}
            ),
            True,
        ),
        (record("jinja2", versions=["3.1.2"]), True),
        (record("jinja2", versions=["3.1.20"]), False),
        (record("ruamel.yaml", {"introduced": "0"}), True),
        (record("other", {"introduced": "0"}), False),
        (record("jinja2", {"introduced": "0"}, withdrawn="2024-01-01"), False),
    ],
)
def test_pinned_version_is_named_or_not(
    tmp_path: Path, told: dict[str, Any], is_named: bool
) -> None:
    """By its range, its list, the normal form of its name, and no withdrawn record."""
    done = run(tmp_path, told, record("unrelated", {"introduced": "0"}))

    assert done.returncode == int(is_named), done.stderr
    assert ("GHSA-x a hole" in done.stdout) == is_named


def test_remedy_is_told(tmp_path: Path) -> None:
    """The version that mends it, and how much was compared."""
    done = run(tmp_path, record("jinja2", {"introduced": "0"}, {"fixed": "3.1.3"}))

    assert done.stdout.splitlines() == [
        "jinja2 3.1.2: GHSA-x a hole (take 3.1.3)",
        "2 libraries against 1 records: 1 to look at",
    ]


def test_zip_as_osv_publishes_it(tmp_path: Path) -> None:
    """One file of many records."""
    told = record("jinja2", {"introduced": "0"})
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("GHSA-x.json", json.dumps(told))

    assert audit(tmp_path, tmp_path / "all.zip").returncode == 1


@pytest.mark.parametrize("told", [None, {"id": "RUSTSEC-1"}, [1], "x"])
def test_nothing_compared_is_not_all_well(tmp_path: Path, told: object) -> None:
    """No records, records of others, and what is no record end with 2 and the rule."""
    done = run(tmp_path) if told is None else run(tmp_path, told)

    assert done.returncode == 2
    assert "must" in done.stderr
    assert "Traceback" not in done.stderr


def test_file_that_is_not_there(tmp_path: Path) -> None:
    """As a person mistypes it."""
    done = audit(tmp_path, tmp_path / "none.zip")

    assert done.returncode == 2
    assert "must hold OSV records" in done.stderr
