"""`scripts/test`: what fails beside other tests is repeated alone, once."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SOMETIMES = """
from pathlib import Path
import pytest

@pytest.mark.xdist_group("some/group.py")
@pytest.mark.parametrize("word", ["a@b"])
def test_fails_first(word):
    mark = Path(__file__).with_name("seen")
    if not mark.exists():
        mark.touch()
        raise AssertionError("the first time")
"""
ALWAYS = """
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_fails(number):
    assert number < 0
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Folder in the checkout: pytest names tests elsewhere by their file only."""
    out = ROOT / "out"
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as name:
        yield Path(name)


def run(folder: Path, text: str) -> tuple[int, str]:
    """Exit status and output of the script for one file of tests."""
    file = folder / "test_file.py"
    file.write_text(text)
    # Not the cache of the run that this test is part of.
    cache = {"TEST_CACHE": str(folder / "cache"), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        [ROOT / "scripts/test", "1", "not long", str(file)],
        env=os.environ | cache,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_test_that_passes_alone_is_named(folder: Path) -> None:
    """Its group and its parameter may contain any sign."""
    status, output = run(folder, SOMETIMES)

    assert status == 0, output
    _, _, repeated = output.partition("Failed beside other tests, repeated alone:")
    assert "test_fails_first[a@b]\n" in repeated
    assert "1 passed" in repeated


@pytest.mark.parametrize(("count", "is_repeated"), [(2, True), (6, False)])
def test_defect_stays_a_failure(folder: Path, count: int, is_repeated: bool) -> None:
    """A test that fails twice; many that fail are not repeated."""
    status, output = run(folder, ALWAYS.format(count=count))

    assert status == 1, output
    assert ("repeated alone" in output) is is_repeated
    assert output.count(f"{count} failed") == 1 + is_repeated
