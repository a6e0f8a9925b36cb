"""Hooks of MkDocs: make web pages of the files that are also read in the source."""

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
LINK = re.compile(r"\[([^]]*)\]\(([^):#]+)(#[^)]*)?\)")


def on_config(config: Any) -> Any:  # noqa: ANN401 - settings of MkDocs
    """Add all decisions to the navigation."""
    pages = sorted(path.name for path in (DOCS / "decisions").glob("*.md"))
    config.nav.append({"Decisions": [f"decisions/{name}" for name in pages]})
    return config


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:  # noqa: ANN401 - a page of MkDocs
    """Name folders and files outside `docs`, which are no pages, without a link."""
    folder = (DOCS / page.file.src_uri).parent

    def replace(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_file() and target.is_relative_to(DOCS):
            return link[0]
        return f"{link[1]} (`{target.relative_to(DOCS.parent)}`)"

    return LINK.sub(replace, markdown)
