"""Notices: received, stored, expired and verified."""

import json
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from edge_agent.notices import (
    NOTICES_STATE,
    Notices,
    check_notice_keys,
    format_local_time,
    restored_time,
)
from service_runtime.errors import FieldError
from spatial_mqtt.announcements import (
    CriteriaNotice,
    Notice,
    NoticeSigner,
    NoticeVerifier,
)
from spatial_mqtt.transport import IncomingMessage


def incoming(topic: str, notice: Notice | bytes) -> IncomingMessage:
    payload = notice if isinstance(notice, bytes) else notice.encode()
    return IncomingMessage(topic, payload, 1, True, None, None, None, (1, 1))


def criteria(warning_mm: float, version: float) -> CriteriaNotice:
    return CriteriaNotice(0.75 * warning_mm, warning_mm, 2 * warning_mm, version)


def test_highest_level_in_force_counts() -> None:
    """One for the valley and one for the slope; each ends at its own time."""
    notices = Notices(None, lambda _: None)
    notices.on_message(incoming("/notice/3", Notice(3, until_s=200.0)))
    notices.on_message(incoming("/notice/3/1", Notice(4, until_s=100.0)))

    assert [notices.level(at_s) for at_s in (0.0, 100.0, 200.0)] == [4, 3, 1]


DAY_S = 86_400.0


def test_expired_notice_makes_the_level_unknown() -> None:
    """From level 3 on, until the longest time; below 3 it just ends."""
    notices = Notices(None, lambda _: None, unknown_s=DAY_S)
    notices.on_message(incoming("/notice/3", Notice(2, 100.0, at_s=50.0)))
    assert not notices.is_unknown(150.0)

    notices.on_message(incoming("/notice/3/1", Notice(3, 200.0, at_s=60.0)))
    times = (199.0, 200.0, 199.0 + DAY_S, 200.0 + DAY_S)
    assert [notices.is_unknown(at_s) for at_s in times] == [False, True, True, False]
    assert notices.level(200.0) == 1
    assert (notices.summary(250.0) or "").startswith(
        "LEVEL UNKNOWN: the notice of level 3 for /3/1 expired "
    )


@pytest.mark.parametrize(
    "end",
    [
        Notice(at_s=900.0, withdrawn=True),
        Notice(3, 5000.0, at_s=900.0),
        Notice(2, 5000.0, at_s=900.0),
        b"",
    ],
)
def test_new_notice_or_withdrawal_ends_the_unknown_level(end: Notice | bytes) -> None:
    """For the same area; another area's does not."""
    notices = Notices(None, lambda _: None)
    notices.on_message(incoming("/notice/3/1", Notice(5, 200.0, at_s=60.0)))
    notices.on_message(incoming("/notice/3", Notice(2, 5000.0, at_s=800.0)))
    assert notices.is_unknown(900.0)
    assert "level 2 by notice for /3 until " in (notices.summary(900.0) or "")
    assert "LEVEL UNKNOWN" in (notices.summary(900.0) or "")

    notices.on_message(incoming("/notice/3/1", end))
    assert not notices.is_unknown(900.0)


def test_unknown_level_survives_a_restart() -> None:
    """A node that restarts while the backend is gone shows it at once."""
    stored: dict[str, str] = {}
    before = Notices(None, stored.update)
    before.on_message(incoming("/notice/3", Notice(4, 200.0, at_s=60.0)))

    assert Notices(stored[NOTICES_STATE], stored.update).is_unknown(300.0)


@dataclass
class Machine:
    """The clocks of a node, `ahead_s` before the true time."""

    true_s: float = 1000.0
    ahead_s: float = 0.0
    is_set: bool = False
    speedup: float = 1.0

    def wall_s(self) -> float:
        return self.true_s + self.ahead_s

    def mono_s(self) -> float:
        return self.true_s

    def is_synchronised(self) -> bool:
        return self.is_set


def node(
    machine: Machine, stored: dict[str, str], passed: str | None = None
) -> Notices:
    """The notices of a node after a start."""
    state = stored.get(NOTICES_STATE)
    notices = Notices(state, stored.update, unknown_s=DAY_S, clock=machine)
    notices.passed_s = restored_time(passed)
    return notices


def stored_notice() -> dict[str, str]:
    """State of a node that has received a notice of level 4 for an hour."""
    stored: dict[str, str] = {}
    notice = Notice(4, 1000.0 + HOUR_S, at_s=1000.0)
    node(Machine(), stored).on_message(incoming("/notice/3", notice))
    return stored


HOUR_S = 3600.0
AHEAD_S = [2 * HOUR_S, 30 * DAY_S, 4e9]


@pytest.mark.parametrize("ahead_s", [0.0, *AHEAD_S, -990.0])
def test_notice_of_this_run_counts_by_its_duration_while_the_clock_is_not_set(
    ahead_s: float,
) -> None:
    """In force for an hour, unknown for a day, then over: it expired in this run."""
    machine = Machine(ahead_s=ahead_s)
    notices = node(machine, {})
    notices.on_message(incoming("/notice/3", Notice(5, 1000.0 + HOUR_S, at_s=1000.0)))
    found = []
    for later_s in (0.0, HOUR_S - 1.0, HOUR_S, HOUR_S + DAY_S - 1.0, HOUR_S + DAY_S):
        machine.true_s = 1000.0 + later_s
        now_s = machine.wall_s()
        found.append((notices.level(now_s), notices.is_unknown(now_s)))

    assert found == [(5, False), (5, False), (1, True), (1, True), (1, False)]


@pytest.mark.parametrize("ahead_s", AHEAD_S)
def test_stored_notice_that_may_have_expired_leaves_the_level_unknown(
    ahead_s: float,
) -> None:
    """By an RTC that is ahead it ended long ago; once the clock is set, it is known."""
    stored = stored_notice()
    machine = Machine(1060.0, ahead_s)
    after = node(machine, stored)

    assert (after.level(machine.wall_s()), after.is_unknown(machine.wall_s())) == (
        1,
        True,
    )
    words = after.summary(machine.wall_s()) or ""
    assert words.startswith("LEVEL UNKNOWN: the notice of level 4 for /3 may have exp")
    machine.true_s += HOUR_S + DAY_S
    assert not after.is_unknown(machine.wall_s())
    machine.true_s, machine.ahead_s, machine.is_set = 1120.0, 0.0, True
    assert after.level(machine.wall_s()) == 4


@pytest.mark.parametrize("ahead_s", [-998_000.0, -60.0, *AHEAD_S])
def test_notice_that_expired_in_an_earlier_run_is_over_whatever_the_clock(
    ahead_s: float,
) -> None:
    """Neither in force again with a clock of 1970, nor unknown with one ahead."""
    stored = stored_notice()
    machine = Machine(1e6, ahead_s)
    after = node(machine, stored, "990000")

    assert (after.level(machine.wall_s()), after.is_unknown(machine.wall_s())) == (
        1,
        False,
    )


def test_clock_behind_or_a_damaged_state_ends_no_stored_notice() -> None:
    """After a power cut the clock goes on where it was saved."""
    stored = stored_notice()
    for passed in (None, "1050", "junk", "nan", "inf"):
        machine = Machine(2000.0, -900.0)
        assert node(machine, stored, passed).level(machine.wall_s()) == 4


def test_withdrawn_notice_shows_a_judged_area_for_hours_with_any_clock() -> None:
    """A clock ahead ended that at once, one of 1970 never."""
    for ahead_s in (*AHEAD_S, -990.0):
        machine = Machine(ahead_s=ahead_s)
        notices = node(machine, {})
        withdrawn = Notice(at_s=1000.0, withdrawn=True)
        notices.on_message(incoming("/notice/3", withdrawn))
        assert notices.is_judged(machine.wall_s())
        machine.true_s += 7 * HOUR_S
        assert not notices.is_judged(machine.wall_s())


def test_area_is_judged_by_a_notice_in_force_or_just_withdrawn() -> None:
    """Not by an expired one: the backend, or the way from it, is gone."""
    notices = Notices(None, lambda _: None)
    assert not notices.is_judged(0.0)
    notices.on_message(incoming("/notice/3", Notice(1, 4e9, at_s=1.0)))
    assert not notices.is_judged(10.0)
    notices.on_message(incoming("/notice/3/1", Notice(2, 100.0, at_s=50.0)))
    assert [notices.is_judged(at_s) for at_s in (60.0, 100.0)] == [True, False]
    withdrawn = Notice(at_s=200.0, withdrawn=True)
    notices.on_message(incoming("/notice/3/1", withdrawn))
    assert [notices.is_judged(at_s) for at_s in (21_000.0, 21_900.0)] == [True, False]


def test_notice_by_hand_ends_as_written() -> None:
    """An exercise without keys has no publisher that could be gone."""
    notices = Notices(None, lambda _: None)
    notices.on_message(incoming("/notice/3", b'{"level": 4, "until_s": 200}'))

    assert not notices.is_unknown(300.0)


def test_summary_names_what_restricts_the_level() -> None:
    """Held levels with the time of the last judgement, and doubts."""
    notices = Notices(None, lambda _: None)
    doubts = ("assumed_criteria", "level_held", "unconfirmed")
    notice = Notice(4, 200.0, None, 60.0, False, "held", 30.0, doubts)
    notices.on_message(incoming("/notice/3", notice))

    summary = notices.summary(100.0) or ""
    assert "(held, no data since 01-01 " in summary
    assert summary.endswith(", assumed criteria, unconfirmed)")


def test_notices_survive_a_restart() -> None:
    """The link may be down when the node comes back."""
    stored: dict[str, str] = {}
    before = Notices(None, stored.update)
    before.on_message(incoming("/notice/3", Notice(3, 200.0, criteria(120.0, 5.0))))
    after = Notices(stored[NOTICES_STATE], stored.update)

    assert after.level(0.0) == 3
    assert after.criteria() == criteria(120.0, 5.0)


def test_newest_criteria_count_then_the_smallest_area() -> None:
    """A newer table of a larger area wins; at equal versions the smaller area wins."""
    notices = Notices(None, lambda _: None)
    for topic, warning_mm, version in (
        ("/notice/3/1", 110.0, 1.0),
        ("/notice/3", 120.0, 2.0),
        ("/notice/3/1/2", 130.0, 2.0),
    ):
        notices.on_message(
            incoming(topic, Notice(criteria=criteria(warning_mm, version)))
        )

    assert notices.criteria() == criteria(130.0, 2.0)


def test_empty_notice_withdraws_the_earlier_one() -> None:
    """An empty retained message is MQTT's way to clear one."""
    changes: list[bool] = []
    notices = Notices(None, lambda _: None)
    notices.on_change = changes.append
    notices.on_message(incoming("/notice/3", Notice(3, until_s=200.0)))
    notices.on_message(incoming("/notice/3", b""))
    notices.on_message(incoming("/notice/3", b""))

    assert notices.level(0.0) == 1
    assert len(changes) == 2


def test_invalid_notices_change_nothing() -> None:
    """Neither in a message nor in the stored state."""
    notices = Notices("{junk", lambda _: None)
    for payload in (b"{}x", b'{"level": 9}', b"[" * 5000, b'{"until_s": 1e999}'):
        notices.on_message(incoming("/notice/3", payload))

    assert notices.level(0.0) == 1
    assert notices.criteria() is None


def test_notice_in_milliseconds_is_refused_and_does_not_stay_stored() -> None:
    """One that an earlier version stored is dropped alone; the others stay."""
    stored: dict[str, str] = {}
    notices = Notices(None, stored.update)
    notices.on_message(incoming("/notice/3", Notice(4, until_s=200.0)))
    late = b'{"level": 5, "until_s": 1800000000000}'
    notices.on_message(incoming("/notice/3/1", late))
    assert "until_s must be Unix seconds" in (notices.refused or "")

    state = json.loads(stored[NOTICES_STATE])
    restored = Notices(json.dumps({"/notice/3/1": late.decode(), **state}), print)
    assert restored.level(100.0) == 4
    assert "level 4 by notice for /3 until " in (restored.summary(100.0) or "")


@pytest.mark.parametrize("state", ['{"/notice/3": 5}', "[]", '{"/notice/3": null}'])
def test_stored_notices_of_another_form_are_not_used(state: str) -> None:
    """A damaged queue file keeps no node from starting."""
    assert Notices(state, print).level(0.0) == 1


@pytest.mark.parametrize("at_s", [1.8e12, 253_402_300_799.0, -1e300, inf, nan])
def test_any_time_has_a_text(at_s: float) -> None:
    """The status line ends no node."""
    assert format_local_time(at_s)


def test_notice_without_criteria_keeps_the_criteria_in_force() -> None:
    """A notice that raises the level of a valley does not revert its criteria."""
    notices = Notices(None, lambda _: None)
    notices.on_message(incoming("/notice/3", Notice(criteria=criteria(120.0, 5.0))))
    notices.on_message(incoming("/notice/3", Notice(4, until_s=100.0)))

    assert notices.level(0.0) == 4
    assert notices.criteria() == criteria(120.0, 5.0)


def test_older_criteria_of_an_area_are_refused_with_a_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The older table may come from a second analyst or a restored broker."""
    notices = Notices(None, lambda _: None)
    notices.on_message(incoming("/notice/3", Notice(criteria=criteria(120.0, 5.0))))
    notices.on_message(incoming("/notice/3", Notice(4, 100.0, criteria(90.0, 4.0))))

    assert notices.criteria() == criteria(120.0, 5.0)
    assert notices.level(0.0) == 1
    assert "criteria.version must be no older than the one before (5)" in caplog.text


def test_withdrawal_of_criteria_is_passed_to_the_callback() -> None:
    """The change callback gets True only when criteria were withdrawn."""
    changes: list[bool] = []
    notices = Notices(None, lambda _: None)
    notices.on_change = changes.append
    notices.on_message(incoming("/notice/3", Notice(3, until_s=200.0)))
    notices.on_message(incoming("/notice/3", Notice(criteria=criteria(120.0, 5.0))))
    notices.on_message(incoming("/notice/3", b""))

    assert changes == [False, False, True]
    assert notices.criteria() is None


AREA = "/notice/3/1"


@pytest.fixture
def office_keys(tmp_path: Path) -> tuple[NoticeSigner, NoticeVerifier]:
    """Signer and verifier of the same key pair."""
    return key_pair(tmp_path, "office")


def key_pair(folder: Path, name: str) -> tuple[NoticeSigner, NoticeVerifier]:
    key = Ed25519PrivateKey.generate()
    private, public = folder / name, folder / f"{name}.pub"
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM,
            serialization.PublicFormat.SubjectPublicKeyInfo,
        )
    )
    return NoticeSigner(private), NoticeVerifier([public])


def sealed(signer: NoticeSigner, notice: Notice, topic: str = AREA) -> bytes:
    return signer.sign(topic, notice.encode())


def test_signed_notice_is_accepted_and_survives_a_restart(
    office_keys: tuple[NoticeSigner, NoticeVerifier],
) -> None:
    """A retained notice is repeated at each connection; that is not a replay."""
    signer, verifier = office_keys
    stored: dict[str, str] = {}
    notices = Notices(None, stored.update, verify=verifier.verify)
    payload = sealed(signer, Notice(4, 200.0, criteria(120.0, 5.0), at_s=50.0))
    notices.on_message(incoming(AREA, payload))
    after = Notices(stored[NOTICES_STATE], stored.update, verify=verifier.verify)
    after.on_message(incoming(AREA, payload))

    assert (after.level(100.0), after.criteria()) == (4, criteria(120.0, 5.0))
    assert after.refused is None
    assert (after.summary(100.0) or "").startswith("level 4 by notice for /3/1 until ")


def test_notice_without_a_valid_signature_is_refused(
    office_keys: tuple[NoticeSigner, NoticeVerifier], tmp_path: Path
) -> None:
    """Unsigned, foreign key, changed, other topic, without a time, and empty."""
    signer, verifier = office_keys
    foreign, _ = key_pair(tmp_path, "foreign")
    notice = Notice(5, 200.0, at_s=50.0)
    good = sealed(signer, notice)
    notices = Notices(None, lambda _: None, verify=verifier.verify)
    for payload, expected in (
        (notice.encode(), "must be signed, got"),
        (b"", "must be signed, got"),
        (sealed(foreign, notice), "with a key that this node knows"),
        (good.replace(b"5", b"4", 1), "with a key that this node knows"),
        (sealed(signer, notice, "/notice/3"), "must be signed for /notice/3/1"),
        (sealed(signer, Notice(5, 200.0)), "at_s must be given"),
    ):
        notices.refused = None
        notices.on_message(incoming(AREA, payload))
        assert expected in (notices.refused or "")
    assert notices.level(0.0) == 1
    notices.on_message(incoming(AREA, good))
    assert notices.level(0.0) == 5


def test_replayed_notice_is_refused(
    office_keys: tuple[NoticeSigner, NoticeVerifier],
) -> None:
    """Also after it was withdrawn, and after a restart."""
    signer, verifier = office_keys
    stored: dict[str, str] = {}
    notices = Notices(None, stored.update, verify=verifier.verify)
    high = sealed(signer, Notice(5, 900.0, criteria(120.0, 5.0), at_s=50.0))
    for payload in (high, sealed(signer, Notice(at_s=60.0, withdrawn=True)), high):
        notices.on_message(incoming(AREA, payload))
    after = Notices(stored[NOTICES_STATE], stored.update, verify=verifier.verify)
    after.on_message(incoming(AREA, high))

    assert [each.level(0.0) for each in (notices, after)] == [1, 1]
    assert after.criteria() is None
    assert "newer than the one before (60.000)" in (after.refused or "")


def test_invalid_key_files_are_reported(tmp_path: Path) -> None:
    """Field, rule and remedy; a private key is not accepted as a public one."""
    key_pair(tmp_path, "office")
    with pytest.raises(FieldError, match="keys must be a PEM file of a public Ed25519"):
        NoticeVerifier([tmp_path / "office"])
    with pytest.raises(FieldError, match="key must be a PEM file of a private Ed25519"):
        NoticeSigner(tmp_path / "absent")
    assert check_notice_keys([str(tmp_path / "office.pub")]) == []
    (advice,) = check_notice_keys([
        str(tmp_path / "office.pub"),
        str(tmp_path / "absent"),
    ])
    assert advice.startswith(
        "no notice will count: notices.keys must be a PEM file of a"
    )
