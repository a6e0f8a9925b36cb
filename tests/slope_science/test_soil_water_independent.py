"""The soil water index against a computation of its own, in both step sizes.

Written from the table of outlets and in exact fractions, tank by tank as a balance
of volumes, so that it shares neither code nor rounding with the formulas.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slope_science.rain import ONE_HOUR_H, TEN_MINUTES_H, soil_water_series


@dataclass
class Tank:
    """A tank with holes: (height in mm, share an hour), the lowest at the bottom."""

    outlets: Sequence[tuple[int, Fraction]]
    bottom: Fraction
    exclusive: Fraction = field(default_factory=Fraction)

    def lose(self, hours: Fraction) -> Fraction:
        """Take out what flows in a time, and give back what goes to the next tank."""
        sides = sum(
            (
                share * (self.exclusive - height)
                for height, share in self.outlets
                if self.exclusive > height
            ),
            Fraction(),
        )
        down = self.bottom * self.exclusive
        self.exclusive -= hours * (sides + down)
        return hours * down


def percent(number: int) -> Fraction:
    """Hundredths."""
    return Fraction(number, 100)


def independent(rain_mm: Iterable[Fraction], hours: Fraction) -> Iterator[Fraction]:
    """The index after each step: three tanks in a row, all emptied before any fills."""
    tanks = [
        Tank([(15, percent(10)), (60, percent(15))], percent(12)),
        Tank([(15, percent(5))], percent(5)),
        Tank([(15, percent(1))], percent(1)),
    ]
    for depth_mm in rain_mm:
        into = [depth_mm, *(tank.lose(hours) for tank in tanks)]
        for tank, water in zip(tanks, into, strict=False):
            tank.exclusive += water
        yield sum((tank.exclusive for tank in tanks), Fraction())


STEPS = {"10 min": (TEN_MINUTES_H, Fraction(1, 6)), "1 h": (ONE_HOUR_H, Fraction(1))}
TENTHS = st.lists(st.integers(0, 2000), min_size=1, max_size=25)


@pytest.mark.parametrize("step", STEPS)
@settings(max_examples=40, deadline=None)
@given(tenths_mm=TENTHS)
def test_index_is_that_of_an_independent_computation(
    step: str, tenths_mm: list[int]
) -> None:
    """To a millionth of a millimetre, whatever rains."""
    step_h, hours = STEPS[step]
    exact = independent((Fraction(n, 10) for n in tenths_mm), hours)
    ours = soil_water_series([n / 10 for n in tenths_mm], step_h)

    for tanks, expected in zip(ours, exact, strict=True):
        assert abs(tanks.index_mm - float(expected)) < 1e-6


def test_worked_storm_agrees_with_both() -> None:
    """The independent computation gives the published peaks too."""
    storm = [0, 5, 10, 20, 30, 50, 60, 40, 20, 10, 5, 0, 0, 0, 0, 0, 0, 0]
    tenth = [Fraction(mm, 6) for mm in storm for _ in range(6)]

    assert float(max(independent(map(Fraction, storm), Fraction(1)))) == pytest.approx(
        172.868, abs=5e-4
    )
    assert float(list(independent(tenth, Fraction(1, 6)))[47]) == pytest.approx(
        168.432, abs=5e-4
    )
