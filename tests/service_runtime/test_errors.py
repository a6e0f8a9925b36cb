"""Errors show a value of a hostile peer in one short line, at a low cost."""

import time

import pytest

from service_runtime.errors import MAX_SHOWN_CHARS, FieldError, shortened


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("x", "'x'"),
        ([1, "a", {"b": [2.5]}], "[1, 'a', {'b': [2.5]}]"),
        (b"x" * 500, "b'" + "x" * 75 + "..."),
        (list(range(1000)), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...]"),
    ],
)
def test_value_is_shown_in_one_short_line(value: object, shown: str) -> None:
    """Small values are shown as they are."""
    assert shortened(value) == shown
    assert len(shortened(value)) <= MAX_SHOWN_CHARS


def test_text_of_a_large_value_is_not_made() -> None:
    """It took longer than decoding the value."""
    value = [[[0] * 50] * 50] * 5_000  # a text of 37 MB
    began_s = time.thread_time()
    error = FieldError("payload", "a map", value)
    assert time.thread_time() - began_s < 0.1
    assert len(str(error)) < 200


def test_long_path_keeps_the_name_of_its_file() -> None:
    path = "/srv" + "/folder" * 20 + "/site.toml"
    shown = shortened(path)
    assert shown.endswith("/folder/site.toml'")
    assert len(shown) == MAX_SHOWN_CHARS
    assert shortened("/etc/site.toml") == "'/etc/site.toml'"
