"""Messages under another publisher's id are quarantined."""

import base64
import json
from pathlib import Path

import pytest

from gateway_daemon.gateway import incoming
from gateway_daemon.gateway.incoming import (
    LOG_EVERY_S,
    IdentityCheck,
    ParsedMessage,
    parse_publication,
)
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import ForwardTopic
from spatial_mqtt.transport import IncomingMessage

CELL = "/1/2"


def pack(node: str) -> bytes:
    name = MessageId(node, "ab", 9)
    return encode_cbor(Pack(name, 4, 0.0, (Reading("x", "mm", 1.0),)))


def parsed(topic: str, payload: bytes, id_: str | None = None) -> ParsedMessage:
    return parse_publication(
        IncomingMessage(topic, payload, 1, False, None, None, id_, (1, 1)),
        ForwardTopic.parse(topic),
        1,
    )


def quarantined_lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "impostors.jsonl"


@pytest.fixture
def check(path: Path) -> IdentityCheck:
    return IdentityCheck(path, lambda: 100.0, has_certificates=True)


def test_own_id_is_accepted(check: IdentityCheck, path: Path) -> None:
    """So are messages without an id, to which the gateway gives one."""
    own = parsed(f"/from/n1{CELL}/pri4", pack("n1"))
    nameless = [parsed(f"/forward{CELL}", b"x"), parsed(f"/from/c{CELL}", b"x")]

    assert check.filter_genuine([own, *nameless]) == [own, *nameless]
    assert (check.quarantined, path.exists()) == (0, False)


@pytest.mark.parametrize(
    ("topic", "payload", "id_"),
    [
        (f"/from/n1{CELL}/pri4", pack("n2"), None),
        (f"/from/n1{CELL}", b"x", "n2:ab:9"),
        (f"/forward{CELL}/pri4", pack("n2"), None),
        (f"/forward{CELL}", b"x", "n2:ab:9"),
    ],
)
def test_foreign_id_is_quarantined_with_its_payload(
    topic: str, payload: bytes, id_: str | None, check: IdentityCheck, path: Path
) -> None:
    """In the envelope or as a property; a topic without a name allows no id."""
    assert check.filter_genuine([parsed(topic, payload, id_)]) == []

    (line,) = quarantined_lines(path)
    assert check.quarantined == 1
    assert (line["topic"], line["id"], line["at"]) == (topic, "n2:ab:9", 100.0)
    assert base64.b64decode(str(line["payload"])) == payload


def test_without_certificates_every_id_is_accepted(path: Path) -> None:
    """A Gamma publisher is named only in its envelope."""
    check = IdentityCheck(path, lambda: 0.0, has_certificates=False)
    plain = parsed(f"/forward{CELL}", pack("n2"))

    assert check.filter_genuine([plain]) == [plain]


def test_impostor_fills_neither_disk_nor_log(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two bounded files and one log line a minute at any rate."""
    monkeypatch.setattr(incoming, "MAX_FILE_BYTES", 1000)
    now_s = [0.0]
    check = IdentityCheck(path, lambda: now_s[0], has_certificates=True)
    for _ in range(100):
        check.filter_genuine([parsed(f"/from/n1{CELL}", pack("n2"))])
    now_s[0] = LOG_EVERY_S
    check.filter_genuine([parsed(f"/from/n1{CELL}", pack("n2"))])

    sizes = [each.stat().st_size for each in path.parent.iterdir()]
    assert (len(sizes), check.quarantined) == (2, 101)
    assert max(sizes) < 1500
    assert caplog.text.count("n1 publishes under the id n2:ab:9") == 2


def test_genuine_messages_pass_when_the_quarantine_file_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk must not stop an alarm."""
    check = IdentityCheck(
        tmp_path / "none" / "x.jsonl", lambda: 0.0, has_certificates=True
    )
    own = parsed(f"/from/n1{CELL}", pack("n1"))

    assert check.filter_genuine([parsed(f"/from/n1{CELL}", pack("n2")), own]) == [own]
    assert (check.quarantined, "cannot write" in caplog.text) == (1, True)
