"""What a current in a 4-20 mA loop means.

Source: NAMUR NE 43: 3.8 to 20.5 mA is a measurement; 3.6 mA or less and 21 mA or
more tell of a failure. The limits stand in `science.md` and are from memory there.
"""

from edge_agent.sensors.errors import Health, SensorRangeError

ZERO_MA, FULL_MA = 4.0, 20.0
BROKEN_MA, LOWEST_MA = 3.6, 3.8
HIGHEST_MA, FAULT_MA = 20.5, 21.0
MOST_MA = 22.0
"""What a transmitter may drive; the converter must still see it."""

_NOTHING_MA = 0.5


def trouble(loop_ma: float) -> tuple[str, str, Health] | None:
    """What is wrong with a loop, what to do, and its name; None for a measurement."""
    got = f"{loop_ma:.2f} mA"
    if loop_ma < _NOTHING_MA:
        return (
            f"has no current: {got}",
            "check the loop's supply, fuse and cable",
            Health.LOOP_BROKEN,
        )
    if loop_ma <= BROKEN_MA:
        return (
            f"is broken: {got}, {BROKEN_MA} mA or less",
            "check the cable for a leak to ground, or replace the transmitter",
            Health.LOOP_BROKEN,
        )
    if loop_ma >= FAULT_MA:
        return (
            f"reports a fault of its own: {got}, {FAULT_MA:g} mA or more",
            "check the cable for a short, or replace the transmitter",
            Health.LOOP_FAULT,
        )
    if not LOWEST_MA <= loop_ma <= HIGHEST_MA:
        side = "below" if loop_ma < LOWEST_MA else "above"
        return (
            f"is {side} its measuring range: {got}, not {LOWEST_MA} to {HIGHEST_MA} mA",
            "check the range of the transmitter",
            Health.IMPLAUSIBLE,
        )
    return None


def decode(volts: float, shunt_ohm: float) -> float:
    """Current of the loop in mA from the voltage over the shunt."""
    return 1000 * volts / shunt_ohm


def measured(name: str, volts: float, shunt_ohm: float) -> float:
    """Current of a sensor's loop in mA.

    Raises:
        SensorRangeError: It is no measurement.
    """
    loop_ma = decode(volts, shunt_ohm)
    wrong = trouble(loop_ma)
    if wrong is not None:
        reason, remedy, health = wrong
        raise SensorRangeError(name, f"has a loop that {reason}", remedy, health)
    return loop_ma


def share(loop_ma: float) -> float:
    """Where a current stands between zero (0) and full scale (1)."""
    return (loop_ma - ZERO_MA) / (FULL_MA - ZERO_MA)
