"""A reading that goes there and back beside the movement of another sensor."""

import random
from collections.abc import Callable

import pytest

from slope_science.evidence.detections import RuleContext, StatefulRule
from slope_science.evidence.judge import EvidenceJudge, make_family
from slope_science.evidence.samples import SensorSample
from slope_science.evidence.settings import DEFAULT_EVIDENCE
from slope_science.levels import combine_findings, noticed
from slope_science.movement import find_spikes

EVERY_S = 600.0
AT = 48
"""Number of the reading that is off: at 8:00."""

TILT, ROD = "n1 tilt", "n1 rod"
Shift = Callable[[int], float]


def none(number: int) -> float:
    """No shift of any reading."""
    return 0.0


def spike(size: float) -> Shift:
    """Shift of one reading."""
    return lambda number: size * (number == AT)


def stays(size: float, back: float = 0.0) -> Shift:
    """Shift of all readings since one; the next one goes back by a share."""
    return lambda number: size * (number >= AT) * (1 - back * (number > AT))


class Slope:
    """Levels of a tilt meter and an extensometer, read every ten minutes.

    Attributes:
        levels: Level after each reading.
        notices: Level of the notice.

    Args:
        mm_per_h: Speed of the rod since 3:00.
        deg_per_h: Tilt rate since 6:00.
        tilt: Shift of the tilt meter, by number of the reading.
        rod: Shift of the rod.
        is_saved: Whether all state is saved and restored after each reading.
    """

    def __init__(
        self,
        mm_per_h: float = 0.0,
        deg_per_h: float = 0.0,
        *,
        tilt: Shift = none,
        rod: Shift = none,
        is_saved: bool = False,
    ) -> None:
        self._renew()
        self.levels: list[int] = []
        self.notices: list[int] = []
        noise = random.Random(3)
        for k in range(75):
            at_s, h = k * EVERY_S, k / 6
            x = noise.gauss(1.2, 0.002) + max(0.0, h - 6) * deg_per_h + tilt(k)
            y = noise.gauss(-0.7, 0.002)
            mm = noise.gauss(50, 0.05) + max(0.0, h - 3) * mm_per_h + rod(k)
            tilted = SensorSample(at_s, parts={"x": x, "y": y})
            self._read(at_s, {TILT: tilted, ROD: SensorSample(at_s, mm)})
            if is_saved:
                self._restart()

    def _renew(self) -> None:
        self._judge = EvidenceJudge(DEFAULT_EVIDENCE.confirm_s, lambda _: 3600.0)
        self._rules: list[StatefulRule] = [
            *make_family("tilt", TILT, DEFAULT_EVIDENCE),
            *make_family("displacement", ROD, DEFAULT_EVIDENCE),
        ]

    def _read(self, at_s: float, samples: dict[str, SensorSample]) -> None:
        for rule in self._rules:
            rule.on_sample(samples[rule.sensor])
        found = self._judge.judge(self._rules, RuleContext(at_s))
        self.levels.append(combine_findings(found).level)
        self.notices.append(combine_findings(noticed(found)).level)

    def _restart(self) -> None:
        judge, begun = self._judge.to_state(), self._judge.begun.to_state()
        rules = [rule.to_state() for rule in self._rules]
        self._renew()
        self._judge.restore_state(judge)
        self._judge.begun.restore_state(begun)
        for rule, state in zip(self._rules, rules, strict=True):
            rule.restore_state(state)


@pytest.mark.parametrize("is_saved", [False, True])
def test_level_of_a_spike_ends_with_the_next_reading(is_saved: bool) -> None:
    """It is confirmed at once, and neither held nor confirmed an hour later."""
    plain = Slope(2.4)
    spiked = Slope(2.4, tilt=spike(3.0), is_saved=is_saved)

    assert plain.levels[AT] == 3
    assert spiked.levels == [*plain.levels[:AT], 4, *plain.levels[AT + 1 :]]
    assert spiked.notices == spiked.levels


def test_spike_confirms_movement_of_another_sensor_until_the_next_reading() -> None:
    """A level that the other sensor reaches by itself stays; its notice is 3 again."""
    spiked = Slope(6.0, tilt=spike(3.0))

    assert set(spiked.levels[30:]) == {4}
    assert spiked.notices[AT - 1 : AT + 13] == [3, 4, *[3] * 12]


def test_spike_of_an_extensometer_ends_with_the_next_reading() -> None:
    """Neither the way back nor the reading itself is a step any more."""
    plain, spiked = Slope(0.0, 0.2), Slope(0.0, 0.2, rod=spike(40.0))

    assert spiked.levels == [*plain.levels[:AT], 5, *plain.levels[AT + 1 :]]


@pytest.mark.parametrize("back", [0.0, 0.5])
def test_step_that_stays_keeps_its_level(back: float) -> None:
    """Also one of which half remains."""
    tilt = Slope(2.4, tilt=stays(3.0, back)).levels
    rod = Slope(0.0, 0.2, rod=stays(40.0, back)).levels

    assert tilt[AT - 1 : AT + 12] == [3, *[4] * 12]
    assert rod[AT - 1 : AT + 12] == [4, *[5] * 12]


def test_spike_ends_no_level_that_began_before_it() -> None:
    """Rod and tilt move, so that they confirm each other."""
    plain, spiked = Slope(6.0, 0.3), Slope(6.0, 0.3, tilt=spike(3.0))

    assert plain.notices[AT] == 4
    assert spiked.levels == plain.levels
    assert spiked.notices == plain.notices


def test_noise_has_no_spikes() -> None:
    """Neither the last reading, nor one beside another, nor one of many."""
    still = [0.0] * 3

    assert find_spikes([[*still, 3.0, *still]], 0.01) == [3]
    assert find_spikes([[*still, 3.0, *still], [0.0] * 7], 0.01) == [3]
    assert find_spikes([[*still, 3.0]], 0.01) == []
    assert find_spikes([[*still, 3.0, 1.5, 1.5]], 0.01) == []
    assert find_spikes([[*still, 3.0, 0.0, 3.0, *still]], 0.01) == []
    assert find_spikes([[*still, 3.0, 0.0, 0.5, 0.5, 0.0, 0.0]], 0.01) == []
    assert find_spikes([[*still, 0.05, *still]], 0.01) == []
    assert find_spikes([[*still, 0.1, *still, 0.4, 0.4, 0.4]], 0.01) == []
