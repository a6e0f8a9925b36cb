"""Tables of readings: messages, units and refusals."""

import re

import pytest
from reading_tables import HEADER, PLACE, START_S, rain_rows, table_text

from slope_science.quality import FLAG_LABEL
from spatial_mqtt.reading_quantities import QUANTITIES
from spatial_mqtt.reading_table import ReadingTableError, name_for_backend, read_table


def test_rows_of_one_time_are_one_message() -> None:
    rows = [
        (0.0, "n1", "gauge", "rain", 0.5, "mm"),
        (0.0, "n1", "gauge", "rain counter", 10.5, "mm"),
        (0.0, "n1", "tilt", "Tilt X", 10, "mdeg"),
        (0.0, "n1", "tilt/y", "tilt", 0.001, "rad"),
        (0.0, "n1", "tilt", "temperature", 50, "degF"),
        (0.0, "n1", "ground", "temperature", 283.15, "K"),
        (0.0, "n1", "w", "wire_cut", "true", ""),
        (60.0, "n1", "gauge", "rain", 0, "mm"),
    ]
    table = read_table("t.csv", table_text(rows))
    assert list(name_for_backend(table.messages)) == []
    first, second = table.messages
    values = {each.reading.name: each.reading.value for each in first.readings}
    assert values == {
        "rain": 0.5,
        "tilt/x": pytest.approx(0.01), "tilt/y": pytest.approx(0.0573, 1e-3),
        "tilt/temp": pytest.approx(10.0), "ground": pytest.approx(10.0), "w": True,
    }  # fmt: skip
    assert first.readings[0].reading.sum == 10.5
    assert (second.at_s, second.received_s) == (START_S + 60, START_S + 60)


def test_rows_without_receipt_are_received_in_order() -> None:
    rows = rain_rows([0, 0, 0])
    table = read_table("t.csv", table_text([rows[1], rows[0], rows[2]]))
    assert [m.received_s - START_S for m in table.messages] == [600, 600, 1200]
    assert "1 rows are older" in table.notes[0]


def test_rows_are_sorted_by_receipt() -> None:
    text = f"{HEADER},received,flags,priority\n" + "\n".join(
        f"2026-01-01T00:0{at}Z,n1,g,rain,0,mm,{PLACE},2026-01-01T00:1{9 - at}Z,{f}"
        for at, f in enumerate(["suspect unsynchronised,3", "4,"])
    )
    table = read_table("t.csv", text)
    last, first = table.messages
    assert (first.synchronised, first.priority) == (False, 3)
    assert first.readings[0].reading.extra == {FLAG_LABEL: 3}
    assert last.readings[0].reading.extra == {FLAG_LABEL: 4}
    assert "sorted" in table.notes[0]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("2026-01-01T00:00,n1,g,rain,0,mm", "time must be ISO 8601 with an offset"),
        ("2026-01-01T00:00Z,n1,g,rain,0,furlong", "unit must be one of mm, cm, m, in"),
        ("2026-01-01T00:00Z,n1,g,snow,0,mm", "quantity must be one of rain"),
        ("2026-01-01T00:00Z,n1,g,rain,nan,mm", "value must be a finite number"),
        ("2026-01-01T00:00Z,n1,g,rain,1_0,mm", "value must be a finite number"),
        ("2026-01-01T00:00Z,n1,g,rain,１２,mm", "value must be a finite number"),
        ("2026-01-01T00:00Z,n1,g,rain,,mm", "value must be given"),
        ("2026-01-01T00:00Z,n1,a b,rain,0,mm", "sensor must be 1 to 32 of"),
        ("2026-01-01T00:00Z,,g,rain,0,mm", "id must be 1 to 63 of"),
        ("2026-01-01T00:00Z,n1,w,wire,2,", "value must be 1 (cut) or 0 (whole)"),
        ("2026-01-01T00:00Z,n1,g,rain,0", "row must be 8 fields, got 7"),
    ],
)
def test_mistake_is_refused_with_its_line(row: str, problem: str) -> None:
    text = table_text(rain_rows([0])) + f"{row},{PLACE}\n"
    with pytest.raises(ReadingTableError, match=re.escape(f"line 3: {problem}")):
        read_table("t.csv", text)
    table = read_table("t.csv", text, skip_refused=True)
    assert (len(table.messages), len(table.refused)) == (1, 1)


def test_tilt_needs_both_axes() -> None:
    with pytest.raises(ReadingTableError, match="both axes, got tilt_x; add rows of"):
        read_table("t.csv", table_text([(0.0, "n1", "t", "tilt_x", 0, "deg")]))


def test_given_twice_is_refused() -> None:
    with pytest.raises(ReadingTableError, match="given once for each time"):
        read_table("t.csv", table_text([*rain_rows([0]), *rain_rows([1])]))


def test_repeated_rows_count_once() -> None:
    """A message that was delivered twice has the same values."""
    rows = [
        (0.0, "n1", "g", "rain", 0.5, "mm"),
        (0.0, "n1", "g", "rain_total", 10.5, "mm"),
        (0.0, "n1", "w", "wire", 0, ""),
    ]
    table = read_table("t.csv", table_text([*rows, *rows]))
    gauge, wire = (each.reading for each in table.messages[0].readings)

    assert (gauge.value, gauge.sum, wire.value) == (0.5, 10.5, False)
    assert table.notes == ["3 rows repeat a row of the same message, and count once"]

    with pytest.raises(ReadingTableError, match="given once for each time"):
        read_table("t.csv", table_text([*rows, (0.0, "n1", "g", "rain", 9, "mm")]))


def test_unknown_column_names_the_nearest() -> None:
    with pytest.raises(ReadingTableError, match="did you mean received"):
        read_table("t.csv", f"{HEADER},recieved\n")


def test_column_given_twice_is_one_mistake() -> None:
    with pytest.raises(ReadingTableError, match=r"got 'value' and 'value'$") as caught:
        read_table("t.csv", f"{HEADER},value\n")
    assert len(caught.value.problems) == 1


def test_second_gauge_of_a_node_is_refused() -> None:
    rows = [*rain_rows([0]), (0.0, "n1", "other", "rain", 0.0, "mm")]
    problems = list(name_for_backend(read_table("t.csv", table_text(rows)).messages))
    assert "the node's only gauge" in problems[0]


def test_every_quantity_has_its_own_unit() -> None:
    for form in QUANTITIES.values():
        assert form.unit is None or form.scales[form.unit] == (1.0, 0.0)


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_other_separators_are_named_with_the_remedy(separator: str) -> None:
    """One mistake, not one for each column that is not found."""
    text = HEADER.replace(",", separator)
    with pytest.raises(ReadingTableError, match="save the table as CSV with") as caught:
        read_table("t", text)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("year", ["0001", "1958", "9999"])
def test_times_outside_the_range_are_refused(year: str) -> None:
    """No program can print them in another time zone."""
    row = f"{year}-12-31T00:00:00+09:00,n1,g,rain,0,mm,35,139"
    with pytest.raises(ReadingTableError, match="time must be between the years 1960"):
        read_table("t", f"{HEADER}\n{row}\n")


def test_receipts_before_1978_are_refused_with_the_remedy() -> None:
    """In a message such times would be relative to now."""
    row = "1972-07-05T00:00:00+09:00,n1,g,rain,0,mm,35,139"
    remedy = "received must be after July 1978, got '1972-07-05T00.*give the time of"
    with pytest.raises(ReadingTableError, match=remedy):
        read_table("t", f"{HEADER}\n{row}\n")


@pytest.mark.parametrize("year", ["1969", "1970", "1977"])
def test_clock_of_the_epoch_is_not_set(year: str) -> None:
    """Whatever the node states; its readings count at their receipt."""
    row = f"{year}-12-31T23:00:00Z,n1,g,rain,0,mm,35,139,2026-01-01T00:00Z"
    table = read_table("t", f"{HEADER},received\n{row}\n")

    assert not table.messages[0].synchronised
