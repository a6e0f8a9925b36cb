"""The Japanese pages keep step with the English ones."""

import re
from collections import Counter
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(each.name for each in (DOCS / "ja").glob("*.md"))


def read(page: Path) -> str:
    """Text of a page without the link to its translation."""
    _, _, text = page.read_text(encoding="utf-8").partition("\n\n")
    return text


def outline(text: str) -> list[str]:
    """Headings, tables and lists in their order, without their words."""
    marks = re.findall(r"^ *(#+ |\|(?!-)|\* |\d+\. |!\[|```)", text, re.MULTILINE)
    return [mark.strip() for mark in marks]


def code(text: str) -> Counter[str]:
    """Commands, keys and file names, in spans and blocks."""
    blocks = re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return Counter(re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text) + blocks)


def anchors(text: str) -> Counter[str]:
    """Other pages and pictures that a page points to; pictures without language."""
    text = re.sub(r"-(?:en|ja)\.png\)", ".png)", text)
    links = re.findall(r"\]\((?:\.\./(?:how-to|ja)/)?([^)]+)\)", text)
    return Counter(link for link in links if not link.endswith(".svg"))


@pytest.mark.parametrize("page", PAGES)
def test_japanese_page_has_the_parts_of_the_english_one(page: str) -> None:
    """A step, a remedy or a command that is added is translated."""
    english, japanese = read(DOCS / "how-to" / page), read(DOCS / "ja" / page)

    assert outline(japanese) == outline(english)
    assert code(japanese) == code(english)
    assert anchors(japanese) == anchors(english)


@pytest.mark.parametrize("page", PAGES)
def test_drawings_of_a_japanese_page_are_those_of_the_english_one(page: str) -> None:
    """The same drawings, with Japanese labels."""
    english, japanese = DOCS / "how-to", DOCS / "ja"
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+\.svg)\)", read(japanese / page)):
        ours, theirs = (
            re.sub(r">[^<>]+</text>|aria-label=\"[^\"]*\"", "", path.read_text())
            for path in (english / picture, japanese / picture)
        )
        assert ours == theirs, picture


@pytest.mark.parametrize("page", PAGES)
def test_screenshots_of_a_page_have_its_language(page: str) -> None:
    """Those of the Japanese page are of the same size as those of the English one."""
    for picture in re.findall(r"\]\(([^)]+\.png)\)", read(DOCS / "ja" / page)):
        ours = (DOCS / "ja" / picture).resolve()
        theirs = ours.with_name(ours.name.replace("-ja.png", "-en.png"))
        assert ours.name.endswith("-ja.png")
        assert png_size(ours) == png_size(theirs), picture


def png_size(path: Path) -> tuple[int, int]:
    """Width and height in pixels; PNG specification, section 11.2.2."""
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG"), path
    return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])
