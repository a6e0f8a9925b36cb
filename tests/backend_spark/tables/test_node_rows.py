"""Newest state of each node from messages that may be late or repeated."""

from itertools import permutations
from typing import Any

import pyarrow as pa
import pytest

from backend_spark.tables.node_rows import (
    MAX_LENGTH,
    MAX_TEXTS,
    REPORT_COLUMNS,
    decode_health_texts,
    list_faults,
    merge_node_row,
    merge_node_rows,
    newest_node_rows,
    update_nodes,
)
from backend_spark.tables.schemas import NODES, PARSED

T0_US = 1_790_000_000_000_000
MINUTE_US = 60_000_000


def summary(minute: int, waited: int = 0, **report: object) -> dict[str, Any]:
    """Summary of a message read at a minute and received some minutes later."""
    at_us = T0_US + minute * MINUTE_US
    columns = dict.fromkeys((*REPORT_COLUMNS, "health")) | report
    if report:
        columns["reported_at"] = at_us
    return {
        "node": "n1",
        "cell": "354ddcc",
        "topic": f"/face/5/{minute}",
        "boot": "b",
        "at": at_us,
        "received_at": at_us + waited * MINUTE_US,
        "synchronised": True,
        "age_s": waited * 60 or None,
    } | columns


SUMMARIES = (
    summary(0, queued="none", gateway="gw-1:1883", dropped=0.0),
    summary(10, queued="5:1 3:13", gateway="gw-2:1883", dropped=2.0, battery_v=12.1),
    summary(20),
    summary(5, waited=60, queued="1:3"),
)


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_order_of_arrival_does_not_matter(order: tuple[int, ...]) -> None:
    """Newest reading, newest report and last receipt are kept independently."""
    known: dict[str, Any] = {}
    for at in order:
        merge_node_rows(known, [SUMMARIES[at]])
    row = known["n1"]
    assert row["topic"] == "/face/5/20"
    assert (row["queued"], row["gateway"], row["battery_v"]) == (
        "5:1 3:13",
        "gw-2:1883",
        12.1,
    )
    assert row["reported_at"] == T0_US + 10 * MINUTE_US
    assert row["received_at"] == T0_US + 65 * MINUTE_US
    assert row["age_s"] is None


def test_known_summaries_are_not_written_again() -> None:
    """A batch that runs again after a crash changes nothing."""
    rows = update_nodes(
        NODES.empty_table(), {"n1": SUMMARIES[1], "n2": SUMMARIES[2] | {"node": "n2"}}
    )
    assert rows.num_rows == 2
    assert not update_nodes(rows, {"n1": SUMMARIES[0]}).num_rows
    assert update_nodes(rows, {"n1": SUMMARIES[2]})["gateway"].to_pylist() == [
        "gw-2:1883"
    ]


def test_string_view_columns_are_read() -> None:
    """delta-rs writes them when it merges."""
    rows = update_nodes(NODES.empty_table(), {"n1": SUMMARIES[0]})
    at = rows.schema.get_field_index("node")
    views = rows.set_column(at, "node", rows["node"].cast(pa.string_view()))
    assert update_nodes(views, {"n1": SUMMARIES[2]})["queued"].to_pylist() == ["none"]


def test_new_report_replaces_all_columns_of_the_old_one() -> None:
    """A battery voltage missing from the new report becomes null."""
    row = merge_node_row(SUMMARIES[1], summary(30, queued="none", gateway="none"))
    assert row["battery_v"] is None


def reading(minute: int, name: str, text: str | None, boot: str = "b") -> pa.Table:
    """A reading of n1 as the only row of a batch."""
    row = {
        "node": "n1",
        "cell": "354ddcc",
        "topic": "/face/5/1",
        "boot": boot,
        "name": name,
        "value_text": text,
        "at": T0_US + minute * MINUTE_US,
        "received_at": T0_US + minute * MINUTE_US,
        "synchronised": True,
    }
    return pa.Table.from_pylist([row], schema=PARSED)


READINGS = (
    reading(0, "tilt/health", "no answer: check power"),
    reading(1, "rain/health", "flaps: more than 20 closures a minute"),
    reading(2, "rain/health", "ok"),
    reading(3, "rain", None),
    reading(4, "tilt/rule", "no line of the prefecture"),
)
FAULTS = {
    "tilt/health": "no answer: check power",
    "tilt/rule": "no line of the prefecture",
}


def test_newest_health_texts_are_kept() -> None:
    """In any order of arrival, also after months with other readings."""
    batches = [newest_node_rows(each).to_pylist() for each in READINGS]
    for order in permutations(batches):
        rows: dict[str, Any] = {}
        for batch in order:
            merge_node_rows(rows, batch)
        texts = decode_health_texts(rows["n1"]["health"])

        assert list_faults(texts, "b") == FAULTS
        assert texts["rain/health"].text == "ok"
        assert not list_faults(texts, "next")
    table = update_nodes(NODES.empty_table(), rows)
    assert not update_nodes(table, rows).num_rows


def test_one_node_cannot_fill_the_table_with_texts() -> None:
    """Of many names and long texts the newest beginnings are kept."""
    many = [reading(n, f"s{n}/health", "x" * 10_000) for n in range(MAX_TEXTS + 20)]
    row = newest_node_rows(pa.concat_tables(many)).to_pylist()[0]
    texts = decode_health_texts(row["health"])

    assert set(texts) == {f"s{n}/health" for n in range(20, MAX_TEXTS + 20)}
    assert {len(each.text) for each in texts.values()} == {MAX_LENGTH}
