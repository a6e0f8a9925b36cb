"""Which evidence of other sensors confirms a detection, and for how long."""

from dataclasses import replace

import pytest

from slope_science.evidence.detections import (
    Corroboration,
    Detection,
    EvidenceKind,
    StepTimes,
    noise_detection,
)
from slope_science.evidence.judge import Beginnings
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

CONFIRM_S = 600.0
TILT, ROD, FAR_TILT, WIRE = "n1 tilt", "n1 rod", "n2 tilt", "n1 wire"
LAST: StepTimes = ((600.0, 1200.0),)
BEFORE: StepTimes = ((-600.0, 0.0),)


def moving(sensor: str, steps: StepTimes = (), **more: object) -> Detection:
    """Movement, or single steps; level 4 if confirmed, else 3."""
    shocks = Reason(ReasonCode.SHOCKS, sensor=sensor, count=1, limit=1)
    made = Detection("tilt", sensor, 4, shocks, 3, steps=steps)
    movement = (EvidenceKind.MOVEMENT,)
    return replace(made, **{"evidence": movement, **more})  # type: ignore[arg-type]


def confirming(detection: Detection, *others: Detection, at_s: float) -> str | None:
    """The sensor that confirms a detection beside others of that moment."""
    signs = Corroboration(CONFIRM_S)
    signs.observe([detection, *others], at_s)
    return signs.find_confirmation(detection, at_s)


def test_movement_beside_a_step_lasts() -> None:
    """A sensor that steps and goes on confirms a step of its node in that reading."""
    step, both = moving(TILT, LAST), (moving(ROD, LAST), moving(ROD))

    assert confirming(step, both[0], at_s=1200.0) is None
    assert confirming(step, *both, at_s=1200.0) == ROD
    assert confirming(step, *both[::-1], at_s=1200.0) == ROD


def test_detections_of_one_moment_are_evidence_of_all_their_time() -> None:
    """A rate since long before, beside a recent one of another rule."""
    old = moving(FAR_TILT, since_s=-3000.0)
    wire = moving(WIRE, at_s=-2500.0)

    for others in ((old, moving(FAR_TILT)), (moving(FAR_TILT), old)):
        assert confirming(wire, *others, at_s=1200.0) == FAR_TILT
        assert confirming(moving(TILT), *others, at_s=1200.0) == FAR_TILT


def test_doubtful_reading_beside_a_sure_one_is_sure() -> None:
    """Nor are shocks beside a rate only shocks."""
    brief, sure = (moving(ROD, BEFORE, unconfirmed_level=n) for n in (1, 3))
    doubted = moving(TILT, LAST, unconfirmed_level=1)
    shocks = moving(FAR_TILT, is_count=True)

    assert confirming(doubted, brief, at_s=1200.0) is None
    assert confirming(doubted, brief, sure, at_s=1200.0) == ROD
    assert confirming(moving(TILT, LAST), shocks, at_s=1200.0) is None
    found = confirming(moving(TILT, LAST), shocks, moving(FAR_TILT), at_s=1200.0)
    assert found == FAR_TILT


@pytest.mark.parametrize("steps", [(), BEFORE])
def test_doubtful_readings_of_one_node_do_not_confirm_each_other(
    steps: StepTimes,
) -> None:
    """Nor do those of two nodes in one reading, nor shocks of the node."""
    doubted = moving(TILT, LAST, unconfirmed_level=1)
    near = moving(ROD, steps, unconfirmed_level=1)
    lasting = moving(TILT, unconfirmed_level=1)
    burst = moving(ROD, steps, is_count=True)

    assert confirming(doubted, near, at_s=1200.0) is None
    assert confirming(doubted, replace(near, sensor=FAR_TILT), at_s=1200.0) == FAR_TILT
    again = moving(FAR_TILT, LAST, unconfirmed_level=1)
    assert confirming(doubted, again, at_s=1200.0) is None
    assert confirming(lasting, burst, at_s=600.0) == (None if steps else ROD)


def test_steps_of_two_nodes_in_one_reading_confirm_each_other() -> None:
    """A kick moves the sensors of one pole only."""
    step = moving(TILT, LAST)

    assert confirming(step, moving(FAR_TILT, LAST), at_s=1200.0) == FAR_TILT
    assert confirming(step, moving(ROD, LAST), at_s=1200.0) is None


def test_shocks_confirm_neither_shocks_nor_a_step_of_another_node() -> None:
    """Nor does a step confirm shocks: an earthquake causes all of them."""
    shocks, far = (moving(each, is_count=True) for each in (TILT, FAR_TILT))

    assert confirming(shocks, far, at_s=1200.0) is None
    assert confirming(shocks, moving(FAR_TILT, LAST), at_s=1200.0) is None
    assert confirming(moving(TILT, LAST), far, at_s=1200.0) is None
    assert confirming(shocks, moving(FAR_TILT), at_s=1200.0) == FAR_TILT
    assert confirming(moving(TILT), far, at_s=1200.0) == FAR_TILT


def test_event_with_a_time_is_evidence_of_that_time() -> None:
    """However long its detection lasts."""
    for cut_s, expected in ((600.0, WIRE), (599.0, None)):
        cut = moving(WIRE, at_s=cut_s)
        assert confirming(moving(FAR_TILT), cut, at_s=1200.0) == expected


def test_unconfirmed_event_that_lasts_keeps_its_level() -> None:
    """Its reason has the hours, and the level of notices after them."""
    signs = Corroboration(CONFIRM_S)
    for most, level in ((2, 2), (None, 3), (3, 3)):
        cut = moving(WIRE, at_s=0.0, alone_for_h=4, alone_notice_level=most)
        found = signs.to_finding(cut, 14_400.0)
        assert found
        assert (found.level, found.notice_level) == (3, 2 if most == 2 else None)
        assert found.reason.code == ReasonCode.UNCONFIRMED_LONG
        assert (found.reason.params["hours"], found.reason.params["level"]) == (
            4,
            level,
        )


def test_steps_of_one_node_are_one_event_only_if_each_has_another() -> None:
    """Of the sensor with fewer of them."""
    later: StepTimes = ((1800.0, 2400.0),)
    kick = moving(TILT, LAST)

    assert confirming(kick, moving(ROD, BEFORE + LAST), at_s=1200.0) is None
    twice = moving(TILT, BEFORE + LAST)
    assert confirming(twice, moving(ROD, BEFORE + later), at_s=2400.0) == ROD


def test_older_evidence_does_not_take_the_place_of_newer() -> None:
    """What is left of a movement is a step within its window."""
    signs = Corroboration(CONFIRM_S)
    signs.observe([moving(TILT)], 1000.0)
    signs.observe([moving(TILT, ((300.0, 900.0),)), moving(FAR_TILT)], 1600.0)

    assert signs.find_confirmation(moving(FAR_TILT), 1600.0) == TILT


def test_evidence_that_goes_on_begins_with_the_earlier_one() -> None:
    """That of a break longer than the time of confirmation begins anew."""
    for second_s, expected in ((1600.0, TILT), (1601.0, None)):
        signs = Corroboration(CONFIRM_S)
        signs.observe([moving(TILT)], 1000.0)
        signs.observe([moving(TILT)], second_s)
        wire = moving(WIRE, at_s=400.0)
        assert signs.find_confirmation(wire, second_s) == expected


def test_nearest_evidence_confirms() -> None:
    """Evidence that is too old is none beside it."""
    signs = Corroboration(CONFIRM_S)
    signs.observe([moving("n3 tilt")], 0.0)
    signs.observe([moving(TILT), moving(FAR_TILT)], 1200.0)

    assert signs.find_confirmation(moving(TILT), 1200.0) == FAR_TILT


def test_confirming_sensor_does_not_remain_unconfirmed() -> None:
    """A cut wire waits longer for its confirmation; the order does not matter."""
    wire = moving(WIRE, at_s=0.0, confirm_s=7200.0, level=5)
    tilt = moving(FAR_TILT)
    for claims in ([tilt, wire], [wire, tilt]):
        signs = Corroboration(CONFIRM_S)
        signs.observe(claims, 3600.0)
        found = [signs.to_finding(claim, 3600.0) for claim in claims]
        assert sorted(f.level for f in found if f) == [4, 5]


def test_only_the_sensor_that_confirms_an_event_is_confirmed_by_it() -> None:
    """And only where the evidence is of the kind that it needs."""
    wire = moving(WIRE, at_s=0.0, confirm_s=7200.0, level=5)
    early = moving("n3 tilt", at_s=3000.0, confirm_s=100.0, evidence=())
    dry = moving(FAR_TILT, needed_evidence=EvidenceKind.WATER)
    for claims, expected in (
        ([early, moving(FAR_TILT), wire], [3, 4, 5]),
        ([dry, wire], [3, 5]),
    ):
        signs = Corroboration(CONFIRM_S)
        signs.observe(claims, 3600.0)
        found = [signs.to_finding(claim, 3600.0) for claim in claims]
        assert [f.level for f in found if f] == expected


def test_confirmation_ends_with_its_event() -> None:
    """The next exceedance needs one of its own."""
    signs = Corroboration(CONFIRM_S)
    signs.observe([moving(TILT), moving(FAR_TILT)], 0.0)
    signs.observe([moving(TILT)], 3600.0)
    goes_on = signs.to_finding(moving(TILT), 3600.0)
    signs.observe([], 4200.0)
    signs.observe([moving(TILT)], 4800.0)
    begins = signs.to_finding(moving(TILT), 4800.0)

    assert [f.level for f in (goes_on, begins) if f] == [4, 3]


def test_state_keeps_confirmations_and_evidence() -> None:
    signs, again = Corroboration(CONFIRM_S), Corroboration(CONFIRM_S)
    signs.observe([moving(TILT), moving(FAR_TILT, LAST, is_count=True)], 0.0)
    signs.observe([moving(TILT), moving(ROD, LAST)], 1200.0)
    again.restore_state(signs.to_state())

    assert again.confirmed == signs.confirmed != {}
    assert again.to_state() == signs.to_state()
    assert again.find_confirmation(moving(WIRE), 1200.0) == ROD


def test_noise_of_a_node_is_no_matter_to_its_contacts() -> None:
    """A cut wire has a time of its own."""
    wire, noise = moving(WIRE, at_s=1200.0), noise_detection("tilt", TILT)

    assert confirming(wire, moving(TILT), noise, at_s=1200.0) == TILT
    assert confirming(moving(ROD), moving(TILT), noise, at_s=1200.0) is None


def test_noise_matters_as_long_as_its_evidence() -> None:
    """Also where only one of both sensors has not moved for an hour."""
    signs = Corroboration(CONFIRM_S)
    noise = noise_detection("tilt", TILT)
    for minute in range(0, 70, 10):
        signs.observe([moving(ROD), noise], minute * 60.0)

    signs.observe([moving(TILT), moving(ROD)], 4200.0)
    assert signs.find_confirmation(moving(TILT), 4200.0) is None
    signs.observe([moving(TILT), moving(ROD)], 4201.0)
    assert signs.find_confirmation(moving(TILT), 4201.0) == ROD


def test_reading_that_went_there_and_back_is_evidence_no_longer() -> None:
    """That of other times and other events stays."""
    signs = Corroboration(CONFIRM_S)
    rod, far = moving(ROD), moving(FAR_TILT)
    signs.observe([rod, moving(TILT)], 600.0)
    spikes = ((0.0, 300.0), (600.0, 1200.0))
    signs.withdraw(TILT, spikes, {("tilt", ROD, 0.0)})

    assert set(signs.confirmed) == {("tilt", TILT, 0.0)}
    assert signs.find_confirmation(rod, 600.0) is None

    signs.observe([moving(TILT)], 1200.0)
    signs.withdraw(TILT, ((600.0, 1200.0),), ())
    assert signs.find_confirmation(far, 1800.0) == TILT

    signs.observe([moving(TILT)], 1300.0)
    signs.withdraw(TILT, ((1250.0, 1400.0),), ())
    assert signs.find_confirmation(far, 1850.0) == TILT
    assert signs.find_confirmation(far, 1851.0) is None


def test_only_what_began_with_a_reading_of_one_sensor_ends_with_it() -> None:
    """Not what another sensor causes, too, nor what began at another time."""
    begun, lone, shared = Beginnings(), ("tilt", 4), ("tilt", 3)
    begun.update({lone: {TILT}, shared: {TILT, FAR_TILT}}, (), 600.0)
    begun.update({lone: {TILT}, shared: {TILT}}, {lone, shared}, 1200.0)

    assert begun.take_begun_by(TILT, ((0.0, 600.0),)) == set()
    assert begun.take_begun_by(TILT, ((0.0, 300.0), (600.0, 1200.0))) == {lone}
    assert begun.take_begun_by(TILT, ((600.0, 1200.0),)) == set()
    begun.update({shared: {TILT}}, {lone, shared}, 1800.0)
    begun.update({}, {shared}, 2400.0)
    begun.update({shared: {TILT}}, (), 3000.0)
    assert begun.take_begun_by(TILT, ((600.0, 1200.0),)) == set()
    assert begun.take_begun_by(TILT, ((3000.0, 3600.0),)) == {shared}
