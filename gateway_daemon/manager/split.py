"""Where to cut an area in two. No I/O."""

from collections.abc import Collection, Mapping

from spatial_mqtt.topics import areas_around, covers

LEAST_GAIN = 0.05
"""A cut that leaves more than all but this with one half is none."""


def best_cut(
    cells: Mapping[str, float], area: str, taken: Collection[str]
) -> tuple[str, float] | None:
    """The sub-area that halves an area's load best.

    Args:
        cells: Messages in a second, by topic.
        area: Whose load it is; topics outside it do not count.
        taken: Areas that somebody serves already.

    Returns:
        The sub-area and its share of the load; of equally good ones the one with
        more of it, then the larger one.
        None when no cut helps: all of the load is in one cell.
    """
    inside = {topic: rate for topic, rate in cells.items() if covers(area, topic)}
    total = sum(inside.values())
    shares: dict[str, float] = {}
    for topic, rate in inside.items():
        for sub in areas_around(topic):
            if sub != area and covers(area, sub) and sub not in taken:
                shares[sub] = shares.get(sub, 0.0) + rate / total
    if not shares:
        return None
    best = min(shares, key=lambda sub: _badness(sub, shares[sub]))
    if not LEAST_GAIN <= shares[best] <= 1 - LEAST_GAIN:
        return None
    return best, shares[best]


def _badness(sub: str, share: float) -> tuple[float, float, int, str]:
    return round(abs(share - 0.5), 3), -round(share, 3), len(sub), sub
