"""Nobody speaks under another's name."""

import base64
import json
from pathlib import Path

import pytest

from gateway_daemon.gateway import admission
from gateway_daemon.gateway.admission import LOG_EVERY_S, IdentityCheck
from gateway_daemon.gateway.ingress_messages import ParsedMessage, parse_publication
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.transport import IncomingMessage

CELL = "/1/2"


def pack(node: str) -> bytes:
    name = MessageId(node, "ab", 9)
    return encode_cbor(Pack(name, 4, 0.0, (Reading("x", "mm", 1.0),)))


def taken(topic: str, payload: bytes, id_: str | None = None) -> ParsedMessage:
    return parse_publication(
        IncomingMessage(topic, payload, 1, False, None, None, id_, (1, 1)), 1
    )


def kept(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "impostors.jsonl"


@pytest.fixture
def guard(path: Path) -> IdentityCheck:
    return IdentityCheck(path, lambda: 100.0, has_certificates=True)


def test_node_that_says_its_own_name_is_believed(
    guard: IdentityCheck, path: Path
) -> None:
    """So is whoever gives no name to what it says: the gateway does."""
    own = taken(f"/from/n1{CELL}/pri4", pack("n1"))
    nameless = [taken(f"/forward{CELL}", b"x"), taken(f"/from/c{CELL}", b"x")]

    assert guard.filter_genuine([own, *nameless]) == [own, *nameless]
    assert (guard.quarantined, path.exists()) == (0, False)


@pytest.mark.parametrize(
    ("topic", "payload", "id_"),
    [
        (f"/from/n1{CELL}/pri4", pack("n2"), None),
        (f"/from/n1{CELL}", b"x", "n2:ab:9"),
        (f"/forward{CELL}/pri4", pack("n2"), None),
        (f"/forward{CELL}", b"x", "n2:ab:9"),
    ],
)
def test_anothers_name_is_put_aside_with_what_was_said(
    topic: str, payload: bytes, id_: str | None, guard: IdentityCheck, path: Path
) -> None:
    """In the envelope or as a property; a topic without a name has no right to one."""
    assert guard.filter_genuine([taken(topic, payload, id_)]) == []

    (line,) = kept(path)
    assert guard.quarantined == 1
    assert (line["topic"], line["id"], line["at"]) == (topic, "n2:ab:9", 100.0)
    assert base64.b64decode(str(line["payload"])) == payload


def test_without_certificates_every_id_is_believed(path: Path) -> None:
    """A Gamma publisher has no name but the one in its envelope."""
    guard = IdentityCheck(path, lambda: 0.0, has_certificates=False)
    plain = taken(f"/forward{CELL}", pack("n2"))

    assert guard.filter_genuine([plain]) == [plain]


def test_impostor_fills_neither_disk_nor_log(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two bounded files and one line a minute, however much is said."""
    monkeypatch.setattr(admission, "MAX_FILE_BYTES", 1000)
    now_s = [0.0]
    guard = IdentityCheck(path, lambda: now_s[0], has_certificates=True)
    for _ in range(100):
        guard.filter_genuine([taken(f"/from/n1{CELL}", pack("n2"))])
    now_s[0] = LOG_EVERY_S
    guard.filter_genuine([taken(f"/from/n1{CELL}", pack("n2"))])

    sizes = [each.stat().st_size for each in path.parent.iterdir()]
    assert (len(sizes), guard.quarantined) == (2, 101)
    assert max(sizes) < 1500
    assert caplog.text.count("n1 says it is n2:ab:9") == 2


def test_others_are_served_when_the_evidence_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk stops nobody's alarm here."""
    guard = IdentityCheck(
        tmp_path / "none" / "x.jsonl", lambda: 0.0, has_certificates=True
    )
    own = taken(f"/from/n1{CELL}", pack("n1"))

    assert guard.filter_genuine([taken(f"/from/n1{CELL}", pack("n2")), own]) == [own]
    assert (guard.quarantined, "cannot write" in caplog.text) == (1, True)
