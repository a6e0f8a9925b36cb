"""The walks of `experiments.code_walks` begin and end where their names say."""

from pathlib import Path

import pytest

from experiments.bench.site import Site
from experiments.code_walks import (
    Walk,
    walk_of_gateway,
    walk_of_tip,
    walks_of_backend,
    walks_of_uplink,
)


def functions(walk: Walk) -> list[str]:
    """Functions in the order of their first calls, thread by thread."""
    return [call.function for calls in walk for call in calls]


def test_tip_is_followed_from_the_pin_into_the_queue(tmp_path: Path) -> None:
    main, reading = walk_of_tip(tmp_path)
    found = functions([main])

    assert found.index("PinPulseSource._pulse") < found.index("SqliteQueue.put")
    assert "RainGauge.read" in functions([reading])


@pytest.mark.broker
def test_message_is_followed_to_its_publish_and_from_its_puback() -> None:
    with Site(None) as site:
        published, acknowledged = map(functions, walks_of_uplink(site))

    assert published.index("SqliteQueue.lease") < published.index("encode_publish")
    assert acknowledged[0] == "BatchingClient.loop_read"
    assert "InFlight.take_actions" in acknowledged
    assert "SqliteQueue.ack" not in acknowledged


def test_message_is_followed_through_a_gateway_to_its_receipt(tmp_path: Path) -> None:
    found = functions(walk_of_gateway(tmp_path))
    steps = ("decode_publish", "SqliteQueue.put", "CustodyReceipt.encode")

    assert [*map(found.index, steps)] == sorted(map(found.index, steps))


def test_messages_are_followed_to_silver_and_to_levels(tmp_path: Path) -> None:
    decoded, scored = map(functions, walks_of_backend(tmp_path))

    assert decoded.index("decode_messages") < decoded.index("write_file")
    assert scored.index("Scorer.score") < scored.index("score_cell")
