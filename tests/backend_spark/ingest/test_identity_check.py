"""Check of node ids against the areas of their certificates, without a broker."""

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
    ("node", "topic", "is_quarantined"),
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
def test_node_id_is_accepted_only_in_its_areas(
    node: str, topic: str, is_quarantined: bool, path: Path
) -> None:
    """An id that is not in the file is accepted: its certificate may be new."""
    checked = PublisherAreaCheck(path).check(arrival(node, topic))

    assert checked.is_quarantined == is_quarantined
    assert (checked.row.node is None) == is_quarantined


def test_impostor_is_quarantined_and_its_id_stays_free(path: Path) -> None:
    """The real message of that number counts as new; the relay gets a receipt."""
    false = PublisherAreaCheck(path).check(arrival("n1", "/3/2", "/custody/gw"))
    plan = plan_flush([false, arrival("n1", "/3/1")], MessageIdSet())
    (topic, payload), *_ = make_receipts([false])

    assert [row.topic for row in plan.log] == ["/3/1"]
    assert (plan.impostors, plan.duplicates) == (1, 0)
    assert "topic must be in /3/1, where the certificate of n1" in str(
        plan.quarantine[0].reason
    )
    assert topic == "/custody/gw"
    assert MessageId("n1", "b", 1) in CustodyReceipt.decode(payload)


def test_impostor_without_relay_gets_no_receipt(path: Path) -> None:
    """A receipt would make the real node delete a message that was not received."""
    false = PublisherAreaCheck(path).check(arrival("n1", "/3/2"))

    assert list(make_receipts([false])) == []


def test_file_is_reloaded_when_it_changes(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A new node needs no restart, and an invalid file is ignored."""
    area_check = PublisherAreaCheck(path)
    new = path.with_name("new")
    for number, text in enumerate(["{", json.dumps({"n1": ["/3/2"]})]):
        new.write_text(text)
        os.utime(new, ns=(number, number))
        new.replace(path)
        area_check.reload_if_changed()
        assert area_check.check(arrival("n1", "/3/2")).is_quarantined == (number == 0)
    path.unlink()
    area_check.reload_if_changed()

    assert not area_check.check(arrival("n1", "/3/2")).is_quarantined
    assert caplog.text.count("is ignored") == 2


@pytest.mark.parametrize("text", ["", "[]", '{"n1": "/3"}', "{", "\udcff"])
def test_invalid_file_is_rejected_at_the_start(text: str, path: Path) -> None:
    """The error names the remedy; accepting all ids instead would hide the fault."""
    path.write_bytes(text.encode(errors="surrogateescape"))

    with pytest.raises(SettingsError, match="gateway-daemon ca places --out"):
        PublisherAreaCheck(path)


def test_without_a_file_all_node_ids_are_accepted() -> None:
    """The demonstration runs like this."""
    area_check = PublisherAreaCheck(None)
    area_check.reload_if_changed()

    assert not area_check.check(arrival("n1", "/5")).is_quarantined
