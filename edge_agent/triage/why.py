"""The reason of a priority, in as many characters as a message has room for."""

from collections.abc import Sequence

WHY_CHARS = 200


def joined(reasons: Sequence[str]) -> str:
    """As many reasons as fit, most serious first."""
    why = reasons[0]
    for reason in reasons[1:]:
        if len(why) + 2 + len(reason) > WHY_CHARS:
            break
        why += f"; {reason}"
    return why if len(why) <= WHY_CHARS else why[: WHY_CHARS - 1] + "…"
