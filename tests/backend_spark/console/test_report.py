"""The mayor's page."""

from collections.abc import Callable

import httpx
import pytest
from console_house import HIGHEST, SLOPES, House, log_in

Open = Callable[..., httpx.Client]


@pytest.mark.parametrize(
    ("language", "level"),
    [("ja", "レベル{}相当"), ("en", "Equivalent to level {}"), ("", "レベル{}相当")],
)
def test_report_tells_level_place_and_reasons(
    open_app: Open, language: str, level: str
) -> None:
    """In the language asked for, or that of the settings."""
    page = open_app().get("/report", params={"lang": language}).text

    assert "大谷町" in page
    assert level.format(HIGHEST) in page
    assert SLOPES[0].cell.token in page
    assert "警戒レベル" not in page


def test_report_says_what_it_does_not_know(open_app: Open) -> None:
    """Assumed criteria, and cells without data."""
    page = open_app().get("/report", params={"lang": "en"}).text

    assert "Criteria are assumed" in page
    assert "A cell without data is not a safe cell" in page


def test_notes_in_the_report_are_only_text(open_app: Open, house: House) -> None:
    """HTML in a note is shown, not run."""
    client = open_app(house.with_accounts())
    proof = log_in(client, "a-analyst")
    client.post("/api/log/note", headers=proof, json={"text": "<script>x()</script>"})
    page = client.get("/report").text

    assert "<script>" not in page
    assert "&lt;script&gt;x()&lt;/script&gt;" in page


def test_report_asks_who_is_there(open_app: Open, house: House) -> None:
    """It holds data, so nobody unknown may read it."""
    assert open_app(house.with_accounts()).get("/report").status_code == 401


def test_an_unknown_language_is_that_of_the_settings(open_app: Open) -> None:
    """Whatever stands in the address."""
    answer = open_app().get("/report", params={"lang": "../../etc/passwd"})

    assert answer.status_code == 200
    assert "土砂災害 状況報告" in answer.text
