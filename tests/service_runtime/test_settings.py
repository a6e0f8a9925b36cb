"""TOML read into typed settings, with all errors reported at once."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service_runtime.errors import FieldError
from service_runtime.settings import (
    KeyRow,
    KeyRule,
    Problem,
    SettingsError,
    build_settings,
    describe_settings,
    key,
    parse_toml,
    read_settings_table,
)
from spatial_mqtt.topics import check_node_id

RATE = KeyRule("Most bytes sent.", unit="bytes/s", low=1, high=1000)
PERIOD = KeyRule("Time between samples.", unit="s", low=0.5)
SHARE = KeyRule("Part of the store that may fill.", high=1)
MODE = KeyRule("How to run.", choices=("live", "demo"))
NODE_ID = KeyRule("Name of the node.", check=check_node_id)
ANY = KeyRule("Anything.")
BARE = "write the bare number, without quotes and without a unit"


@dataclass(frozen=True)
class Link:
    """A table of defaults."""

    rate_bytes_per_s: int = key(RATE, 100)
    period_s: float = key(PERIOD, 600.0)


@dataclass(frozen=True)
class Sensor:
    """An element of an array of tables."""

    name: str = key(ANY)
    share: float = key(SHARE, 0.5)


@dataclass(frozen=True)
class Node:
    """A whole file."""

    id: str = key(NODE_ID)
    link: Link = key(ANY)  # noqa: RUF009 - a field, as in the product
    backup: Link | None = key(ANY, None)  # noqa: RUF009 - the same
    sensors: tuple[Sensor, ...] = key(ANY, ())
    tags: tuple[str, ...] = key(ANY, ("a",))
    mode: str = key(MODE, "live")
    verbose: bool = key(ANY, default=False)
    limit: int | None = key(ANY, None)

    def __post_init__(self) -> None:
        """A rule that concerns two keys."""
        if self.mode == "demo" and self.verbose:
            raise FieldError("verbose", "false in a demo", self.verbose)


@dataclass(frozen=True)
class Unbounded:
    """A number without bounds."""

    number: float = key(ANY, 1.0)


def problems(text: str, form: type = Node) -> tuple[str, ...]:
    """Errors found in a file."""
    with pytest.raises(SettingsError, match=r"must|known") as caught:
        build_settings(form, parse_toml(text))
    return tuple(map(str, caught.value.problems))


def test_missing_keys_get_the_defaults() -> None:
    """Only required keys must be given; a table of defaults may be absent."""
    assert build_settings(Node, parse_toml('id = "n"')) == Node(id="n", link=Link())


def test_file_with_all_keys_is_read() -> None:
    """Tables, optional tables, arrays of tables and lists."""
    text = """
    id = "n"
    tags = ["x", "y"]
    mode = "demo"
    verbose = false
    limit = 3
    link = { rate_bytes_per_s = 7, period_s = 2 }
    [backup]
    period_s = 0.5
    [[sensors]]
    name = "rain"
    [[sensors]]
    name = "tilt"
    share = 1
    """
    assert build_settings(Node, parse_toml(text)) == Node(
        id="n",
        link=Link(rate_bytes_per_s=7, period_s=2.0),
        backup=Link(period_s=0.5),
        sensors=(Sensor(name="rain"), Sensor(name="tilt", share=1.0)),
        tags=("x", "y"),
        mode="demo",
        limit=3,
    )


@given(rate=st.integers(1, 1000), period_s=st.floats(0.5, 1e9))
def test_numbers_within_bounds_are_read(rate: int, period_s: float) -> None:
    """A number that TOML carries arrives unchanged."""
    text = f"rate_bytes_per_s = {rate}\nperiod_s = {period_s!r}"

    assert build_settings(Link, parse_toml(text)) == Link(
        rate_bytes_per_s=rate, period_s=period_s
    )


@given(rate=st.integers().filter(lambda n: not 1 <= n <= 1000))
def test_number_out_of_bounds_is_refused(rate: int) -> None:
    """The error names key, bounds, unit and value."""
    with pytest.raises(
        SettingsError,
        match=r"^rate_bytes_per_s must be between 1 and 1000 bytes/s, got -?\d",
    ):
        build_settings(Link, {"rate_bytes_per_s": rate})


def test_whole_number_serves_as_a_number() -> None:
    """`2` where 2.0 is meant is no error; the result is a float."""
    assert type(build_settings(Link, {"period_s": 2}).period_s) is float


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("period_s = 0.4", "period_s must be at least 0.5 s, got 0.4"),
        ("period_s = -inf", "period_s must be at least 0.5 s, got -inf"),
        ("period_s = nan", "period_s must be at least 0.5 s, got nan"),
        (
            'period_s = "10s"',
            "period_s must be a number in s, got '10s'; " + BARE,
        ),
        (
            'rate_bytes_per_s = "9"',
            "rate_bytes_per_s must be a whole number in bytes/s, got '9'; " + BARE,
        ),
        (
            "rate_bytes_per_s = 1.5",
            "rate_bytes_per_s must be a whole number in bytes/s, got 1.5",
        ),
        (
            "rate_bytes_per_s = true",
            "rate_bytes_per_s must be a whole number in bytes/s, got True",
        ),
        ("period_s = false", "period_s must be a number in s, got False"),
        ("period_s = []", "period_s must be a number in s, got []"),
    ],
)
def test_wrong_number_is_reported_with_its_remedy(text: str, problem: str) -> None:
    """Key, rule, unit, value and the form to write."""
    assert problems(text, Link) == (problem,)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("verbose = 1", "verbose must be true or false, got 1"),
        ("tags = 'x'", "tags must be a list of text, got 'x'"),
        ("tags = [1]", "tags must be text, got 1"),
        ("mode = 'test'", "mode must be one of 'live', 'demo', got 'test'"),
        ("mode = 1", "mode must be text, got 1"),
        ("limit = 'x'", "limit must be a whole number, got 'x'; write the bare number"),
        ("link = 5", "link must be a table, got 5"),
        ("backup = 'x'", "backup must be a table, got 'x'"),
        ("sensors = [5]", "sensors[1] must be a table, got 5"),
        ("sensors = 5", "sensors must be a list of "),
        ("mode = 'demo'\nverbose = true", "verbose must be false in a demo, got True"),
    ],
)
def test_wrong_value_is_reported_with_its_key(line: str, problem: str) -> None:
    """One error, one sentence."""
    (found,) = problems(f"id = 'n'\n{line}")
    assert found.startswith(problem)


def test_array_of_tables_is_described_without_class_names() -> None:
    """The author of a TOML file need not know Python classes."""
    (found,) = problems("id = 'n'\nsensors = 5")
    assert "class" not in found


def test_check_function_of_a_key_is_applied() -> None:
    """For rules that bounds cannot express."""
    (found,) = problems("id = 'a/b'")
    assert found.startswith("id must be 1 to 63 of A-Z")


def test_share_above_its_bound_is_refused() -> None:
    """A bound may be one-sided; array elements are numbered from 1."""
    text = "id = 'n'\n[[sensors]]\nname='a'\n[[sensors]]\nname='b'\nshare = 1.5"

    assert problems(text) == ("sensors[2].share must be at most 1, got 1.5",)


def test_unknown_key_is_reported_with_the_nearest() -> None:
    """A misspelt key never silently falls back to its default."""
    (found,) = problems("id = 'n'\n[link]\nrate_byte_per_s = 5")
    assert found == (
        "link.rate_byte_per_s is not a known key; did you mean 'rate_bytes_per_s'? "
        "(known here: period_s, rate_bytes_per_s)"
    )


def test_unknown_key_similar_to_none_is_to_be_removed() -> None:
    """Without a similar key the remedy is to remove it."""
    (found,) = problems("id = 'n'\nzzz = 5")
    assert found.startswith(
        "zzz is not a known key; remove it (known here: backup, id,"
    )


def test_missing_key_is_reported_with_its_meaning() -> None:
    """With type and meaning, also in an array element."""
    assert problems("") == ("id must be given: text; Name of the node.",)
    assert problems("id = 'n'\n[[sensors]]\nshare = 1") == (
        "sensors[1].name must be given: text; Anything.",
    )


def test_all_errors_are_reported_at_once() -> None:
    """An operator corrects a file once, not error by error."""
    text = """
    mode = "x"
    zzz = 1
    verbose = "yes"
    [link]
    rate_bytes_per_s = 0
    period_s = "1 s"
    [backup]
    period = 5
    [[sensors]]
    [[sensors]]
    name = 5
    """
    found = problems(text)

    assert sorted(line.split()[0] for line in found) == [
        "backup.period",
        "id",
        "link.period_s",
        "link.rate_bytes_per_s",
        "mode",
        "sensors[1].name",
        "sensors[2].name",
        "verbose",
        "zzz",
    ]


def test_error_text_has_one_problem_per_line() -> None:
    """The text is the list of problems."""
    with pytest.raises(
        SettingsError, match=r"zz is not .*\nid must be given"
    ) as caught:
        build_settings(Node, {"zz": 1})
    assert str(caught.value) == "\n".join(map(str, caught.value.problems))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("node", "line 1, column 5 must be TOML (Expected '=' after"),
        (
            "a = mqtt://b",
            "line 1, column 5 must be TOML (Invalid value); write text in",
        ),
        ("a = 1\nb = = 2\n", "line 2, column 5 must be TOML (Invalid value); write"),
        ("rate = 1,5", "line 1, column 9 must be TOML (Expected newline or end"),
        ("a = 10 s", "line 1, column 8 must be TOML (Expected newline or end"),
        ("= 1", "line 1, column 1 must be TOML (Invalid statement); begin the line"),
        ("[node", "line 1, column 6 must be TOML (Expected ']' at the end of a"),
        ("[[s]", "line 1, column 4 must be TOML (Expected ']]' at the end of an"),
        ("a = 1\na = 2\n", "line 2, column 6 must be TOML (Cannot overwrite a value)"),
        ("[a]\n[a]", "line 2, column 3 must be TOML (Cannot declare ('a',) twice)"),
        ("a = {b=1, b=2}", "line 1, column 14 must be TOML (Duplicate inline table"),
        ("a = [1 2]", "line 1, column 8 must be TOML (Unclosed array); separate"),
        ("a = {b=1", "line 1, column 9 must be TOML (Unclosed inline table); sep"),
        ('a = "x\n', "line 1, column 7 must be TOML (Illegal character '\\n'); close"),
        ("a = 'x", 'line 1, column 7 must be TOML (Expected "\'"); close the text'),
        ('a = """x\n\n', "line 1, column 9 must be TOML (Unterminated string); close"),
        (
            'a = "C:\\dir"',
            "line 1, column 10 must be TOML (Unescaped '\\' in a string)",
        ),
        (
            "# \x07",
            "line 1, column 3 must be TOML (Found invalid character '\\x07'",
        ),
        pytest.param("a = " + "1" * 5000, "must be TOML (Exceeds", id="digits"),
        pytest.param("a = " + "[" * 10_000, "must be TOML (", id="lists"),
    ],
)
def test_text_that_is_not_toml_is_refused_with_place_and_remedy(
    text: str, problem: str
) -> None:
    """Whoever edits a file on a mountain need not know TOML."""
    with pytest.raises(SettingsError, match=r"^a\.toml") as caught:
        parse_toml(text, "a.toml")
    (found,) = caught.value.problems
    assert str(found).replace(": line", " line").startswith(f"a.toml {problem}")
    assert found.remedy


def test_text_that_is_not_toml_is_not_shown() -> None:
    """A line may be the address of a mail server with its password."""
    with pytest.raises(SettingsError, match="Invalid value") as caught:
        parse_toml("to = [mailtos://user:secret@host]")
    assert "secret" not in str(caught.value)


def test_file_may_have_a_byte_order_mark(tmp_path: Path) -> None:
    """Windows' editors write one; errors count lines and columns without it."""
    file = tmp_path / "a.toml"
    file.write_text("a = 1\n", encoding="utf-8-sig")
    assert read_settings_table(file) == {"a": 1}

    file.write_bytes(b"\xef\xbb\xbfa = 1\nb = '\xe9'\n")
    with pytest.raises(SettingsError, match=r"got byte 0xe9 in line 2; save it"):
        read_settings_table(file)


def test_error_of_a_file_that_is_not_toml_names_it(tmp_path: Path) -> None:
    """Several files, such as those of `joint`, are read by one command."""
    file = tmp_path / "a.toml"
    file.write_text("a = 1\nb = = 2")
    with pytest.raises(SettingsError, match=rf"^{file}: line 2, column 5 must be TOML"):
        read_settings_table(file)


@pytest.mark.parametrize("default", [[], {}, set()])
def test_mutable_default_is_refused(default: object) -> None:
    """Settings are immutable; instances must not share a list."""
    with pytest.raises(TypeError, match="a default must be immutable"):
        key(ANY, default)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_number_that_is_not_finite_is_refused_without_bounds_too(value: str) -> None:
    """NaN and infinity are never valid settings."""
    with pytest.raises(
        SettingsError, match=f"^number must be a finite number, got {value}"
    ):
        build_settings(Unbounded, parse_toml(f"number = {value}"))


def test_integer_too_large_for_a_double_is_refused() -> None:
    """A number of 400 digits is a settings error, not a crash."""
    with pytest.raises(SettingsError, match=r"^number must be"):
        build_settings(Unbounded, parse_toml("number = 1" + "0" * 400))


def test_describe_gives_a_row_for_every_key() -> None:
    """The reference pages are generated from these rows; nested tables are included."""
    rows = list(describe_settings(Node))

    assert [row.path for row in rows] == [
        "id",
        "link.rate_bytes_per_s",
        "link.period_s",
        "backup.rate_bytes_per_s",
        "backup.period_s",
        "sensors.name",
        "sensors.share",
        "tags",
        "mode",
        "verbose",
        "limit",
    ]
    assert rows[0] == KeyRow("id", "text", NODE_ID, "required")
    assert rows[1] == KeyRow("link.rate_bytes_per_s", "a whole number", RATE, "100")
    assert [row.kind for row in rows[7:]] == [
        "a list of text",
        "text",
        "true or false",
        "a whole number",
    ]


def test_describe_prepends_a_path() -> None:
    """A dataclass used as a table is described under its key."""
    assert [row.path for row in describe_settings(Link, "uplink")] == [
        "uplink.rate_bytes_per_s",
        "uplink.period_s",
    ]


def test_problem_has_fields_for_programs() -> None:
    """Safe mode locates the faulty part of a file by them."""
    check = FieldError("url", "mqtt://host:port", "x", "write a port")

    problem = Problem.of(check, "uplink.managers")
    assert (problem.field, problem.part) == ("uplink.managers", "url")
    assert problem.rule == "must be mqtt://host:port"
    assert str(problem) == f"uplink.managers: {check}"
    assert Problem.of(check).under("alarm[2]").path == ("alarm", 1, "url")
