"""Whose name belongs where, without a broker."""

import json
import os
from pathlib import Path

import pytest

from backend_spark.ingest.deduplication import MessageIdSet
from backend_spark.ingest.identity_check import PublisherAreaCheck
from backend_spark.ingest.messages import (
    ClassifiedMessage,
    classify_message,
    make_receipts,
    plan_flush,
)
from service_runtime.settings import SettingsError
from spatial_mqtt.custody import CustodyReceipt
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.transport import IncomingMessage


def arrival(node: str, topic: str, answer: str | None = None) -> ClassifiedMessage:
    pack = Pack(MessageId(node, "b", 1), 5, 1.7e9, (Reading("rain", "mm", 0.5),))
    payload = encode_cbor(pack)
    return classify_message(
        IncomingMessage(topic, payload, 1, False, 5, answer, None, (1, 1)), 5
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "places.json"
    path.write_text(json.dumps({"n1": ["/3/1"], "gw": ["/3", "/4"]}))
    return path


@pytest.mark.parametrize(
    ("node", "topic", "is_aside"),
    [
        ("n1", "/3/1", False),
        ("n1", "/3/1/2", False),
        ("n1", "/3/2", True),
        ("n1", "/3", True),
        ("n1", "/3/11", True),
        ("gw", "/4/0", False),
        ("gw", "/5", True),
        ("new", "/5", False),
    ],
)
def test_name_speaks_from_its_certificates_places(
    node: str, topic: str, is_aside: bool, path: Path
) -> None:
    """A name that nobody has told us of is believed: it may be an hour old."""
    judged = PublisherAreaCheck(path).check(arrival(node, topic))

    assert judged.is_quarantined == is_aside
    assert (judged.row.node is None) == is_aside


def test_impostor_is_kept_with_the_reason_and_takes_no_number(path: Path) -> None:
    """The real message of that number is new when it comes; who lied hears "kept"."""
    false = PublisherAreaCheck(path).check(arrival("n1", "/3/2", "/custody/gw"))
    told = plan_flush([false, arrival("n1", "/3/1")], MessageIdSet())
    (topic, payload), *_ = make_receipts([false])

    assert [row.topic for row in told.log] == ["/3/1"]
    assert (told.impostors, told.duplicates) == (1, 0)
    assert "topic must be in /3/1, where the certificate of n1" in str(
        told.quarantine[0].reason
    )
    assert topic == "/custody/gw"
    assert MessageId("n1", "b", 1) in CustodyReceipt.decode(payload)


def test_nobody_hears_of_a_lie_under_its_name(path: Path) -> None:
    """A receipt would make the real sender let go of a message that nobody has."""
    false = PublisherAreaCheck(path).check(arrival("n1", "/3/2"))

    assert list(make_receipts([false])) == []


def test_file_is_taken_when_it_changes_and_only_whole(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An ingester is not started again for a node more, nor ended by a slip."""
    places = PublisherAreaCheck(path)
    new = path.with_name("new")
    for number, text in enumerate(["{", json.dumps({"n1": ["/3/2"]})]):
        new.write_text(text)
        os.utime(new, ns=(number, number))
        new.replace(path)
        places.reload_if_changed()
        assert places.check(arrival("n1", "/3/2")).is_quarantined == (number == 0)
    path.unlink()
    places.reload_if_changed()

    assert not places.check(arrival("n1", "/3/2")).is_quarantined
    assert caplog.text.count("is ignored") == 2


@pytest.mark.parametrize("text", ["", "[]", '{"n1": "/3"}', "{", "\udcff"])
def test_file_that_cannot_be_used_is_named_at_the_start(text: str, path: Path) -> None:
    """With what to do; believing everybody instead would be silent."""
    path.write_bytes(text.encode(errors="surrogateescape"))

    with pytest.raises(SettingsError, match="gateway-daemon ca places --out"):
        PublisherAreaCheck(path)


def test_without_a_file_everybody_speaks_from_everywhere() -> None:
    """As in the demonstration."""
    places = PublisherAreaCheck(None)
    places.reload_if_changed()

    assert not places.check(arrival("n1", "/5")).is_quarantined
