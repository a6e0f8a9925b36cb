"""What sensors measure, in the words that their settings use.

A driver declares its quantity, an installer gives one as `measures`; triage knows
by it what a reading means. A quantity that is not here is judged by limits only.
"""

RAIN = "rain"
TILT = "tilt"
DISPLACEMENT = "displacement"
WIRE = "wire is cut"
SHOCKS = "shocks"
WATER_CONTENT = "volumetric water content"
PORE_PRESSURE = "pore pressure"
WATER_LEVEL = "water level"

JUDGED = (
    RAIN,
    TILT,
    DISPLACEMENT,
    WIRE,
    SHOCKS,
    WATER_CONTENT,
    PORE_PRESSURE,
    WATER_LEVEL,
)
"""Those that triage has rules for."""

DISTANCE = "distance from the site"
TEMPERATURE = "temperature"
AIR = "air in the housing"
MACHINE = "health of the machine"

TOLD = (DISTANCE, TEMPERATURE, AIR, MACHINE)
"""Those of our drivers that say nothing of the slope by themselves."""

_OTHER_WORDS = {"vibration": SHOCKS}

_FACTORS: dict[str, dict[str | None, float]] = {
    RAIN: {"mm": 1.0, "cm": 10.0, "m": 1000.0},
    TILT: {"deg": 1.0},
    DISPLACEMENT: {"mm": 1.0, "cm": 10.0, "m": 1000.0},
    WIRE: {None: 1.0},
    SHOCKS: {"count": 1.0},
    WATER_CONTENT: {"/": 1.0, "/100": 0.01},
    PORE_PRESSURE: {"hPa": 0.1, "Pa": 0.001, "m": 9.80665},  # of water, to kPa
    WATER_LEVEL: {"m": 1.0, "cm": 0.01, "mm": 0.001},
}


def known(words: str) -> str:
    """The quantity that some words mean, as far as we have it; else the words."""
    plain = " ".join(words.casefold().split())
    return _OTHER_WORDS.get(plain, plain)


def factor(quantity: str, unit: str | None) -> float | None:
    """From a SenML unit to the unit of the quantity's rules; None if it has no part.

    Rules are in mm, deg, m3/m3, kPa, and m of water level.
    """
    return _FACTORS.get(quantity, {}).get(unit)


def units(quantity: str) -> tuple[str | None, ...]:
    """The SenML units in which a quantity is judged."""
    return tuple(_FACTORS.get(quantity, {}))
