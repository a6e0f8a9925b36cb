"""Rain of gauges in other cells."""

import pytest

from backend_spark.scoring.observation import Observation
from backend_spark.scoring.surrounding_rain import (
    MAX_GAUGES,
    collect_nearby_rain,
    find_nearby_cells,
)
from spatial_mqtt.cells import ANALYSIS_LEVEL, Cell

T0 = 1_700_000_400
STEP_S = 600


def token(north_km: float, east_km: float = 0.0) -> str:
    """Cell at a distance from a place at 33.5 degrees north."""
    latitude, longitude = 33.5 + north_km / 111.2, 133.5 + east_km / 92.7
    return Cell.at(latitude, longitude, ANALYSIS_LEVEL).token


def reports(
    node: str, mm: float, count: int = 6, flag: int | None = 1, why: str | None = None
) -> list[Observation]:
    """Reports of a gauge every ten minutes from `T0` on."""
    return [
        Observation(
            T0 + n * STEP_S, node, "rain", "mm", mm, None, n * mm, 0, "b", n,
            flag=flag, why=why,
        )
        for n in range(count)
    ]  # fmt: skip


def test_cells_within_the_radius_are_found_the_nearest_first() -> None:
    """Not the cell itself, and no more than the limit."""
    here, near, far, away = token(0), token(2), token(0, -4), token(6)
    found = find_nearby_cells([here], [away, far, near, here], 5.0)

    assert [other for _, other in found[here]] == [near, far]
    assert [km for km, _ in found[here]] == pytest.approx([2, 4], abs=0.9)
    crowd = [token(n, e) for n in (-2, -1, 0, 1, 2) for e in (-2, -1, 0, 1, 2)]
    assert len(find_nearby_cells([here], crowd, 5.0)[here]) == MAX_GAUGES


def test_rain_of_a_step_is_that_of_the_nearest_gauge_that_knows_it() -> None:
    """A gauge that ended and one with doubtful rain are passed over."""
    here, near, doubted, far = token(0), token(1), token(2), token(4)
    suspect = {"flag": 3, "why": "range: 60 mm within 10 min > 50 mm"}
    rain = {
        near: reports("n1", 1.0, count=3),
        doubted: reports("n2", 60.0, **suspect),  # type: ignore[arg-type]
        far: [*reports("n3", 3.0), *reports("n4", 4.0)],
    }
    around = find_nearby_cells([here], rain, 5.0)
    nearby = collect_nearby_rain(rain, around)[here]
    found = [nearby.nearest(T0 + n * STEP_S) for n in (1, 4)]

    assert [f.node for f in found if f] == ["n1", "n3"]
    assert [f.depth_mm for f in found if f] == pytest.approx([1.0, 3.0])
    assert [f.distance_km for f in found if f] == [
        km for km, cell in around[here] if cell in {near, far}
    ]
    assert nearby.nearest(T0 + 6 * STEP_S) is None
