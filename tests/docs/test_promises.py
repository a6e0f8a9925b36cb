"""The page that lists promises and their tests matches the tests."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
PAGE = (ROOT / "docs/explanation/tests.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and "`" in line
]
NAMED = re.compile(r"`([a-z_/]+(?:\.py|/))`")
LONG = re.compile(r"import sizes$|mark\.long|\bscale: Scale\b", re.MULTILINE)


def test_every_test_that_the_page_names_exists() -> None:
    """A promise without its test would be an assertion of the page alone."""
    named = {path for row in ROWS for cell in row[1:] for path in NAMED.findall(cell)}
    paths = {path for path in named if not (ROOT / path).exists()}

    assert {path for path in paths if not (TESTS / path).exists()} == set()
    assert len(paths) > 40


def test_page_lists_every_test_with_a_long_form() -> None:
    """It is in the third column of a promise whose second column is not empty."""
    long = {
        path.relative_to(TESTS).as_posix()
        for path in TESTS.rglob("test_*.py")
        if path != Path(__file__) and LONG.search(path.read_text(encoding="utf-8"))
    }
    short, named = (
        [set(NAMED.findall(row[column])) for row in ROWS] for column in (1, 2)
    )

    assert long
    assert long - set().union(*named) == set()
    pairs = zip(named, short, strict=True)
    assert [paths for paths, kept in pairs if paths and not kept] == []
