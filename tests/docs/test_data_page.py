"""The page of tables and columns matches the schemas."""

import re
from pathlib import Path

import pytest

from backend_spark.tables.schemas import TABLES, format_ddl

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "data.md"
ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \| ([^|]*) \| ([^|]+) \|$", re.MULTILINE)


def sections() -> dict[str, str]:
    """Text of each table's section."""
    parts = re.split(r"^## `(\w+)`", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_table_has_a_section() -> None:
    """The reference describes each table of the schema."""
    assert list(sections()) == list(TABLES)


@pytest.mark.parametrize("table", TABLES)
def test_section_names_every_column_with_its_type(table: str) -> None:
    """In the order of the schema, with the type that Spark writes."""
    rows = [(name, kind.strip()) for name, kind, _, _ in ROW.findall(sections()[table])]
    typed = [column.split(" ", 1) for column in format_ddl(TABLES[table]).split(", ")]

    assert rows == [(name.strip("`"), kind) for name, kind in typed]


@pytest.mark.parametrize("table", TABLES)
def test_every_number_with_a_unit_in_its_name_has_it_on_the_page(table: str) -> None:
    """The unit in the name and the unit on the page must agree."""
    endings = {
        "_mm": "mm",
        "_deg_per_h": "deg/h",
        "_mm_per_h": "mm/h",
        "_s": "s",
        "_percentile": "%",
        "_h": "h",
    }
    wrong = []
    for name, kind, unit, _ in ROW.findall(sections()[table]):
        ends = [end for end in endings if name.endswith(end)]
        longest = max(ends, key=len, default="")
        is_number = kind.strip() in {"double", "int", "bigint"}
        if longest and is_number and unit.strip() != endings[longest]:
            wrong.append(name)
    assert wrong == []
