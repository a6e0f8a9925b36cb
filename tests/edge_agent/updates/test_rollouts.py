"""Selection of the rollout for a node, and the state of its image."""

from pathlib import Path

from edge_agent.updates import ROLLOUTS_STATE, ImageInfo, Rollouts
from spatial_mqtt.announcements import Rollout
from spatial_mqtt.errors import NoticeError
from spatial_mqtt.transport import IncomingMessage

DIGEST = "ab" * 32


def rollout(version: str, at_s: float, **more: object) -> Rollout:
    return Rollout(version, DIGEST, 1000, at_s, **more)  # type: ignore[arg-type]


def incoming(topic: str, payload: bytes) -> IncomingMessage:
    return IncomingMessage(topic, payload, 1, True, None, None, None, (1, 1))


def verify(_topic: str, payload: bytes) -> bytes:
    if payload.startswith(b"forged"):
        raise NoticeError("notice", "signed", payload)
    return payload


def received_rollouts(
    *messages: tuple[str, Rollout],
) -> tuple[Rollouts, dict[str, str]]:
    stored: dict[str, str] = {}
    rollouts = Rollouts("kochi-1", verify, None, stored.update)
    for topic, each in messages:
        rollouts.on_message(incoming(topic, each.encode()))
    return rollouts, stored


def test_newest_rollout_of_a_role_is_selected_after_a_restart() -> None:
    """Of the node's areas, the latest rollout."""
    first, second = rollout("2", 5.0), rollout("3", 9.0)
    other = rollout("4", 12.0, role="gateway")
    _, stored = received_rollouts(
        ("/update/1", second), ("/update/1/2", first), ("/update/1/3", other)
    )
    after = Rollouts("kochi-1", verify, stored[ROLLOUTS_STATE], stored.update)

    assert after.select("node") == second
    assert after.select("gateway") == other


def test_withdrawn_rollout_is_not_restored_by_an_old_one() -> None:
    """Neither an old retained message nor an empty one restores it."""
    rollouts, _ = received_rollouts(("/update/1", rollout("2", 5.0)))
    rollouts.on_message(
        incoming("/update/1", rollout("2", 6.0, withdrawn=True).encode())
    )
    assert rollouts.select("node") is None

    rollouts.on_message(incoming("/update/1", rollout("2", 5.0).encode()))
    assert rollouts.select("node") is None
    assert rollouts.refused is not None
    assert "newer than the one before (6.000)" in rollouts.refused
    rollouts.on_message(incoming("/update/1", b""))
    assert rollouts.select("node") is None


def test_other_and_unsigned_rollouts_change_nothing() -> None:
    """A rollout of zero percent selects no node; an unsigned one is refused."""
    rollouts, stored = received_rollouts(("/update/1", rollout("2", 5.0, percent=0.0)))
    assert rollouts.select("node") is None
    before = dict(stored)
    rollouts.on_message(incoming("/update/1", b"forged"))

    assert stored == before
    assert "notice must be signed" in str(rollouts.refused)


def test_node_without_an_image_has_no_image_fields(tmp_path: Path) -> None:
    """A manual installation has no role, slot or result."""
    machine = ImageInfo(tmp_path)
    assert machine.read_field("role") is None
    assert not machine.is_on_trial
    assert machine.bundle_result(DIGEST, "2") is None


def test_result_of_a_bundle_comes_from_the_history(tmp_path: Path) -> None:
    """Only the result of this version counts."""
    state = tmp_path / "data/slot"
    state.mkdir(parents=True)
    (state / "tried").write_text(f"{DIGEST}\n")
    machine = ImageInfo(tmp_path)
    assert machine.bundle_result(DIGEST, "2") == "on trial"

    (state / "history").write_text(
        "2026-01-01T00:00:00Z version 2 given up: edge-agent did not stay up\n"
        "2026-01-02T00:00:00Z version 3 works and is kept\n"
    )
    assert machine.bundle_result(DIGEST, "2") == "given up: edge-agent did not stay up"
