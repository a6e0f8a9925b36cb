"""The audit of pinned libraries against advisories."""

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
    """An advisory for one library."""
    part = {
        "package": {"ecosystem": "PyPI", "name": name},
        "ranges": [{"type": "ECOSYSTEM", "events": list(events)}],
        "versions": more.pop("versions", ()),
    }
    return {"id": "GHSA-x", "summary": "a hole", "affected": [part], **more}


def run(folder: Path, *records: object) -> subprocess.CompletedProcess[str]:
    """Audit the lock file against some records."""
    path = folder / "osv"
    path.mkdir()
    for number, each in enumerate(records):
        (path / f"{number}.json").write_text(json.dumps(each))
    return audit(folder, path)


def audit(folder: Path, path: Path) -> subprocess.CompletedProcess[str]:
    lock = folder / "lock"
    lock.write_text(LOCK)
    command = [sys.executable, str(ROOT / "scripts" / "audit.py"), str(lock)]
    return subprocess.run(
        [*command, str(path)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("advisory", "is_named"),
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
def test_pinned_version_is_matched_against_advisories(
    tmp_path: Path, advisory: dict[str, Any], is_named: bool
) -> None:
    """By range, version list and normalised name; withdrawn records do not count."""
    done = run(tmp_path, advisory, record("unrelated", {"introduced": "0"}))

    assert done.returncode == int(is_named), done.stderr
    assert ("GHSA-x a hole" in done.stdout) == is_named


def test_fixed_version_is_reported(tmp_path: Path) -> None:
    """The version that fixes the flaw, and the number of records compared."""
    done = run(tmp_path, record("jinja2", {"introduced": "0"}, {"fixed": "3.1.3"}))

    assert done.stdout.splitlines() == [
        "jinja2 3.1.2: GHSA-x a hole (take 3.1.3)",
        "2 libraries against 1 records: 1 to look at",
    ]


def test_zip_in_the_format_of_osv_is_read(tmp_path: Path) -> None:
    """One archive of many records."""
    advisory = record("jinja2", {"introduced": "0"})
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("GHSA-x.json", json.dumps(advisory))

    assert audit(tmp_path, tmp_path / "all.zip").returncode == 1


@pytest.mark.parametrize("advisory", [None, {"id": "RUSTSEC-1"}, [1], "x"])
def test_audit_without_usable_records_fails(tmp_path: Path, advisory: object) -> None:
    """Missing, foreign and malformed records end with status 2 and the rule."""
    done = run(tmp_path) if advisory is None else run(tmp_path, advisory)

    assert done.returncode == 2
    assert "must" in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_file_is_reported(tmp_path: Path) -> None:
    """For example a mistyped path."""
    done = audit(tmp_path, tmp_path / "none.zip")

    assert done.returncode == 2
    assert "must hold OSV records" in done.stderr
