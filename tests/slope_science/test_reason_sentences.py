"""Sentences of reasons as stored in tables and on nodes, byte for byte.

`reason_sentences.tsv` has each sentence as written by the version before codes, and
its Japanese translation.
"""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slope_science.reason_catalogue import CATALOGUE
from slope_science.reason_codes import ReasonCode
from slope_science.reason_compat import (
    MAX_CHARS,
    parse_english,
    parse_or_text,
    parse_why,
)
from slope_science.reasons import (
    Reason,
    reason_from_json,
    reason_to_json,
    render_english,
    render_japanese,
)

FILE = Path(__file__).with_name("reason_sentences.tsv")
ROWS = [line.split("\t") for line in FILE.read_text("utf-8").splitlines()[1:]]


@pytest.mark.parametrize(("encoded", "sentence", "japanese_sentence"), ROWS)
def test_sentence_is_rendered_as_before(
    encoded: str, sentence: str, japanese_sentence: str
) -> None:
    """The same English text, so that old and new rows compare equal; one Japanese."""
    reason = reason_from_json(encoded)

    assert render_english(reason) == sentence
    assert render_japanese(reason) == japanese_sentence
    assert reason_to_json(reason) == encoded


@pytest.mark.parametrize(("encoded", "sentence", "_japanese"), ROWS)
def test_sentence_of_an_old_table_is_parsed_to_its_code(
    encoded: str, sentence: str, _japanese: str
) -> None:
    """Needed until every table has codes."""
    assert parse_english(sentence) == reason_from_json(encoded)


@pytest.mark.parametrize("code", ReasonCode)
def test_every_code_has_a_sentence_in_the_file(code: ReasonCode) -> None:
    """Adding a code requires a row with its sentence."""
    assert any(f'["{code}"' in encoded for encoded, _, _ in ROWS), CATALOGUE[code].en


@pytest.mark.parametrize(("_encoded", "sentence", "japanese_sentence"), ROWS)
def test_both_languages_have_the_same_numbers(
    _encoded: str, sentence: str, japanese_sentence: str
) -> None:
    """Numbers with a decimal point."""
    in_english = re.findall(r"[+-]?\d+\.\d+", sentence.replace(", +", ", "))

    assert sorted(in_english) == sorted(re.findall(r"[+-]?\d+\.\d+", japanese_sentence))


@given(st.text())
def test_any_text_is_parsed_or_kept(text: str) -> None:
    """Free text is shown unchanged in both languages."""
    reason = parse_or_text(text)

    assert render_english(reason) == text
    assert all(render_english(each) in text for each in parse_why(text))


@pytest.mark.parametrize(
    "text",
    [
        "the moon is full",
        "rain: " * 1000 + "x",
        "x" * (MAX_CHARS + 1),
        "readings of " + "x" * MAX_CHARS,
    ],
)
def test_unknown_sentence_is_no_reason(text: str) -> None:
    """Neither is a hostile one, which is rejected quickly."""
    assert parse_english(text) is None
    assert render_japanese(parse_or_text(text)) == text


def test_truncated_sentence_is_kept_as_text() -> None:
    """The sentence before it is parsed."""
    first, cut = parse_why("tilt: T 0.200±0.001 deg/h >= 0.1 (7 points); wire: w is c…")

    assert first.code == ReasonCode.RULE
    assert cut == Reason(ReasonCode.TEXT, text="wire: w is c…")


def test_sentences_are_parsed_only_where_stored_or_foreign_ones_are_read() -> None:
    """All other modules use reasons as data; the list is to become empty."""
    root = Path(__file__).parents[2]
    importers = {
        path.relative_to(root).as_posix()
        for package in (
            "slope_science",
            "edge_agent",
            "gateway_daemon",
            "backend_spark",
        )
        for path in (root / package).rglob("*.py")
        if "slope_science.reason_compat" in path.read_text("utf-8")
    }

    assert importers == {
        "backend_spark/criteria/tables.py",  # column VERSION of a table of criteria
        "backend_spark/forecast.py",  # column flag_why
        "backend_spark/i18n.py",  # rows and messages without codes
        "backend_spark/scoring/observation.py",  # column flag_why
        "slope_science/evidence/judge.py",  # snapshot
    }
