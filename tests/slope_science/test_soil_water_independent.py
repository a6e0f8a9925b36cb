"""The soil water index against an independent computation, in both step sizes.

Written from the table of outlets in exact fractions, as a volume balance of each tank,
so that it shares neither code nor rounding errors with the product.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slope_science.rain_and_soil_water import (
    ONE_HOUR_H,
    TEN_MINUTES_H,
    soil_water_series,
)


@dataclass
class Tank:
    """A tank with outlets: (height in mm, share per hour), the lowest at the bottom."""

    outlets: Sequence[tuple[int, Fraction]]
    bottom: Fraction
    stored_mm: Fraction = field(default_factory=Fraction)

    def drain(self, hours: Fraction) -> Fraction:
        """Remove the outflow of a time; return the part that flows to the next tank."""
        sides = sum(
            (
                share * (self.stored_mm - height)
                for height, share in self.outlets
                if self.stored_mm > height
            ),
            Fraction(),
        )
        down = self.bottom * self.stored_mm
        self.stored_mm -= hours * (sides + down)
        return hours * down


def percent(number: int) -> Fraction:
    """A percentage as a fraction."""
    return Fraction(number, 100)


def exact_index(rain_mm: Iterable[Fraction], hours: Fraction) -> Iterator[Fraction]:
    """The index after each step: three tanks in a row, all drained before any fills."""
    tanks = [
        Tank([(15, percent(10)), (60, percent(15))], percent(12)),
        Tank([(15, percent(5))], percent(5)),
        Tank([(15, percent(1))], percent(1)),
    ]
    for depth_mm in rain_mm:
        into = [depth_mm, *(tank.drain(hours) for tank in tanks)]
        for tank, water in zip(tanks, into, strict=False):
            tank.stored_mm += water
        yield sum((tank.stored_mm for tank in tanks), Fraction())


STEPS = {"10 min": (TEN_MINUTES_H, Fraction(1, 6)), "1 h": (ONE_HOUR_H, Fraction(1))}
TENTHS = st.lists(st.integers(0, 2000), min_size=1, max_size=25)


@pytest.mark.parametrize("step", STEPS)
@settings(max_examples=40, deadline=None)
@given(tenths_mm=TENTHS)
def test_index_is_that_of_an_independent_computation(
    step: str, tenths_mm: list[int]
) -> None:
    """To a millionth of a millimetre, for any rain."""
    step_h, hours = STEPS[step]
    exact = exact_index((Fraction(n, 10) for n in tenths_mm), hours)
    ours = soil_water_series([n / 10 for n in tenths_mm], step_h)

    for tanks, expected in zip(ours, exact, strict=True):
        assert abs(tanks.index_mm - float(expected)) < 1e-6


def test_worked_storm_agrees_with_both() -> None:
    """The independent computation gives the published peaks, too."""
    storm = [0, 5, 10, 20, 30, 50, 60, 40, 20, 10, 5, 0, 0, 0, 0, 0, 0, 0]
    tenth = [Fraction(mm, 6) for mm in storm for _ in range(6)]

    assert float(max(exact_index(map(Fraction, storm), Fraction(1)))) == pytest.approx(
        172.868, abs=5e-4
    )
    assert float(list(exact_index(tenth, Fraction(1, 6)))[47]) == pytest.approx(
        168.432, abs=5e-4
    )
