"""Names of levels for whom they leave the house to, in Japanese and English.

The municipality and the observatory issue warnings; what we compute is "equivalent
to" a level (レベルn相当), and never says that a level was issued.

Source: names in use from 2026-05-29.
"""

from typing import Final

NAMES: Final = {
    5: ("レベル5相当（土砂災害特別警報の基準）", "equivalent to level 5"),
    4: ("レベル4相当（土砂災害危険警報の基準）", "equivalent to level 4"),
    3: ("レベル3相当（土砂災害警報の基準）", "equivalent to level 3"),
    2: ("レベル2相当（土砂災害注意報の基準）", "equivalent to level 2"),
    1: ("レベル1相当", "equivalent to level 1"),
}
NO_JUDGEMENT: Final = ("判定なし", "no judgement")
SILENT: Final = ("データなし", "no data")


def level_name(level: int | None, *, is_silent: bool = False) -> tuple[str, str]:
    """A level in Japanese and in English; nothing known has a name too."""
    if level is None:
        return SILENT if is_silent else NO_JUDGEMENT
    return NAMES[level]
