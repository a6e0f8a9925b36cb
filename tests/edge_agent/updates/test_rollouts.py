"""Which rollout is meant for a node, and what the node knows of its image."""

from pathlib import Path

from edge_agent.updates.rollouts import ROLLOUTS_STATE, Rollouts
from edge_agent.updates.updater import ImageInfo
from spatial_mqtt.announcements import Rollout
from spatial_mqtt.errors import NoticeError
from spatial_mqtt.transport import IncomingMessage

DIGEST = "ab" * 32


def rollout(version: str, at_s: float, **more: object) -> Rollout:
    return Rollout(version, DIGEST, 1000, at_s, **more)  # type: ignore[arg-type]


def incoming(topic: str, payload: bytes) -> IncomingMessage:
    return IncomingMessage(topic, payload, 1, True, None, None, None, (1, 1))


def opened(_topic: str, payload: bytes) -> bytes:
    if payload.startswith(b"forged"):
        raise NoticeError("notice", "signed", payload)
    return payload


def heard(*told: tuple[str, Rollout]) -> tuple[Rollouts, dict[str, str]]:
    kept: dict[str, str] = {}
    rollouts = Rollouts("kochi-1", opened, None, kept.update)
    for topic, each in told:
        rollouts.on_message(incoming(topic, each.encode()))
    return rollouts, kept


def test_newest_of_our_role_counts_and_survives_a_restart() -> None:
    """A slope's own word or the valley's: the later one."""
    first, second = rollout("2", 5.0), rollout("3", 9.0)
    other = rollout("4", 12.0, role="gateway")
    _, kept = heard(
        ("/update/1", second), ("/update/1/2", first), ("/update/1/3", other)
    )
    after = Rollouts("kochi-1", opened, kept[ROLLOUTS_STATE], kept.update)

    assert after.select("node") == second
    assert after.select("gateway") == other


def test_rollout_is_taken_back_and_not_by_an_old_one() -> None:
    """A broker's old retained message brings nothing back, nor does an empty one."""
    rollouts, _ = heard(("/update/1", rollout("2", 5.0)))
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


def test_others_and_strangers_change_nothing() -> None:
    """Zero percent is nobody; what nobody signed is refused by name."""
    rollouts, kept = heard(("/update/1", rollout("2", 5.0, percent=0.0)))
    assert rollouts.select("node") is None
    before = dict(kept)
    rollouts.on_message(incoming("/update/1", b"forged"))

    assert kept == before
    assert "notice must be signed" in str(rollouts.refused)


def test_node_without_an_image_says_so(tmp_path: Path) -> None:
    """Installed by hand there is no role, no slot and no outcome."""
    machine = ImageInfo(tmp_path)
    assert machine.read_field("role") is None
    assert not machine.is_on_trial
    assert machine.bundle_result(DIGEST, "2") is None


def test_outcome_of_a_bundle_is_the_last_word(tmp_path: Path) -> None:
    """Of this version, not of another."""
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
