"""Files of the pages are sent compressed, and not again while they are the same."""

from collections.abc import Callable

import httpx
import pytest

OpenApp = Callable[..., httpx.Client]


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/api/cells"])
def test_compressed_content_is_that_without_compression(
    open_app: OpenApp, path: str
) -> None:
    """A client that does not accept gzip gets the content as it is."""
    client = open_app()
    packed = client.get(path)
    plain = client.get(path, headers={"Accept-Encoding": "identity"})

    assert packed.headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Vary"] == "Accept-Encoding"
    assert "Accept-Encoding" in plain.headers["Vary"]
    assert packed.content == plain.content
    assert packed.headers["Content-Type"] == plain.headers["Content-Type"]


@pytest.mark.parametrize("name", ["app.js", "style.css", "map-worker.mjs", "icon.svg"])
def test_file_that_a_browser_has_is_not_sent_again(
    open_app: OpenApp, name: str
) -> None:
    """The browser asks each time: after an upgrade it never keeps the old page."""
    client = open_app()
    first = client.get(f"/static/{name}")
    again = {"If-None-Match": first.headers["ETag"]}
    second = client.get(f"/static/{name}", headers=again)
    other = client.get(f"/static/{name}", headers={"If-None-Match": '"other"'})

    assert first.headers["Cache-Control"] == "no-cache"
    assert (second.status_code, second.content) == (304, b"")
    assert other.content == first.content
    assert client.head(f"/static/{name}").content == b""


def test_data_are_not_kept_by_browsers(open_app: OpenApp) -> None:
    """They belong to the session."""
    headers = open_app().get("/api/cells").headers

    assert headers["Cache-Control"] == "no-store"
    assert "ETag" not in headers
