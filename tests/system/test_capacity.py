"""Short forms of the capacity experiments: every message arrives."""

from pathlib import Path

import pytest

from experiments.bench.packets import packets, published
from experiments.bench.storm_packets import (
    FIRST_SEQ,
    StormNode,
    name_of,
    place_of,
    priority_of,
    receipted,
)
from experiments.capacity import RESULTS, SIZES, Measured, Plan, page_table
from experiments.capacity_backend import Arm
from experiments.capacity_backend import run as run_backend
from experiments.capacity_gateway import run as run_gateway
from spatial_mqtt.custody import CustodyReceipt
from spatial_mqtt.senml import MessageId, decode_pack
from spatial_mqtt.topics import ForwardTopic

ROOT = Path(__file__).parents[2]


def test_patched_packet_equals_the_pack_of_that_sampling() -> None:
    """Values patched into a finished packet decode as a node encodes them."""
    node = StormNode(16, None)
    for seq, now_s in ((0, 1_782_831_600.25), (70_000, 1_782_999_999.5)):
        ((first, body),) = packets(bytearray(node.packet(seq, 517, now_s)))
        topic, mid, _, payload = published(first, body)
        pack = decode_pack(payload)

        assert topic == str(ForwardTopic(place_of(16), priority_of(16)))
        assert mid == (517).to_bytes(2, "big")
        assert pack.id == MessageId(name_of(16), "0ce93c39", FIRST_SEQ + seq)
        assert (pack.time_s, pack.readings[0].sum) == (now_s, 0.5 * seq)


def test_storm_has_the_specified_share_of_each_priority() -> None:
    """2 % of the nodes send priority 5, 50 % send 1."""
    priorities = [priority_of(node) for node in range(1000)]

    assert {p: priorities.count(p) for p in range(1, 6)} == {
        1: 500, 2: 300, 3: 140, 4: 40, 5: 20,
    }  # fmt: skip


def test_receipt_ranges_expand_to_samplings_of_nodes() -> None:
    """A receipt names ranges of sequence numbers."""
    ids = [MessageId(name_of(3), "0ce93c39", FIRST_SEQ + seq) for seq in (0, 1, 4)]

    assert receipted(CustodyReceipt.from_ids(ids).encode()) == {(3, 0), (3, 1), (3, 4)}


@pytest.mark.broker
@pytest.mark.system
def test_storm_of_500_nodes_passes_one_gateway() -> None:
    """Each node gets a receipt for its message, and the backend's log holds it."""
    step = run_gateway(250.0, 2.0)

    assert (step.sent, step.lost) == (500, 0)
    assert step.custody_p99_s is not None
    assert step.urgent_p99_s is not None
    assert all(step.mib.values())


@pytest.mark.broker
@pytest.mark.system
@pytest.mark.spark
@pytest.mark.long
def test_storm_passes_the_backend_into_every_table_once() -> None:
    """Ingester, alerts writer and Spark as processes; nothing is lost or doubled."""
    step = run_backend(Arm("short", 500.0, 2.0, with_gold=False, warm_s=0.2))

    assert (step.sent, step.lost, step.doubled) == (1000, 0, 0)
    urgent = sum(priority_of(node) >= 4 for node in range(1000))
    assert step.lags["alerts"].n >= urgent // 2
    assert step.lags["silver"].n == 5 * step.sent


def test_plan_on_the_page_matches_the_results() -> None:
    """A new measurement must be copied to the page."""
    page = (ROOT / "docs/explanation/capacity.md").read_text(encoding="utf-8")
    measured = Measured.read(ROOT / RESULTS)
    lines = page_table([Plan.of(nodes, measured) for nodes in SIZES], 30.0, 25.0)

    assert "\n".join(lines) in page


def test_plan_scales_with_the_nodes() -> None:
    """Ten times the nodes need at most ten times the cores, and no fewer."""
    measured = Measured.read(ROOT / RESULTS)
    few, many = (Plan.of(nodes, measured) for nodes in (100_000, 1_000_000))

    assert few.cores <= many.cores <= 10 * few.cores
    assert many.gateways == 10 * few.gateways
    assert many.year_tb == pytest.approx(10 * few.year_tb)
